"use strict";
(() => {
  const figures = JSON.parse(document.getElementById("figures").textContent);
  const root = document.documentElement;
  const narrow = () => window.innerWidth < 640;

  // ---- light and dark
  const dark = () =>
    root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  const color = (name) => getComputedStyle(root).getPropertyValue(`--${name}`).trim();
  const remembered = (value) => {
    try { // storage may be refused for local files
      if (value) localStorage.setItem("earl-report-theme", value);
      return localStorage.getItem("earl-report-theme");
    } catch { return null; }
  };
  const recolor = () => {
    label();
    for (const element of document.querySelectorAll(".plot.drawn")) Plotly.relayout(element, colors(figures[element.dataset.figure].layout));
  };
  const colors = (layout) => {
    const changes = {
      "paper_bgcolor": color("card"), "plot_bgcolor": color("card"), "font.color": color("ink"),
      "hoverlabel.bgcolor": color("card"), "hoverlabel.bordercolor": color("rule"), "hoverlabel.font.color": color("ink"),
    };
    for (const axis of ["xaxis", "yaxis", "yaxis2"]) {
      if (!layout[axis]) continue;
      changes[`${axis}.gridcolor`] = color("grid");
      changes[`${axis}.linecolor`] = color("rule");
    }
    return changes;
  };
  const stored = remembered();
  if (stored === "dark" || stored === "light") root.dataset.theme = stored;
  const button = document.getElementById("theme");
  const label = () => { button.textContent = dark() ? "Light colours" : "Dark colours"; };
  button.addEventListener("click", () => {
    root.dataset.theme = dark() ? "light" : "dark";
    remembered(root.dataset.theme);
    recolor();
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", recolor);
  label();

  // ---- episodes
  const marks = document.getElementById("marks");
  if (marks) marks.addEventListener("click", () => {
    const hidden = document.querySelector("main").classList.toggle("marks-off");
    marks.setAttribute("aria-pressed", String(!hidden));
    marks.textContent = hidden ? "Show chat marks" : "Hide chat marks";
  });

  // ---- the table behind each plot, made when it is opened
  const format = (spec, trace) => {
    const axis = spec.layout[trace.yaxis === "y2" ? "yaxis2" : "yaxis"] || {};
    return /%/.test(axis.tickformat || "")
      ? (value) => `${+(100 * value).toFixed(3)} %`
      : (value) => String(+value.toPrecision(6));
  };
  const table = (spec) => {
    const traces = spec.data.filter((trace) => trace.meta !== "enlarged");
    const rows = new Map();
    traces.forEach((trace, column) => trace.x.forEach((x, place) => {
      if (!rows.has(x)) rows.set(x, Array(traces.length).fill(""));
      if (trace.y[place] === null) return;
      const show = format(spec, trace), y = trace.y[place], bars = trace.error_y;
      const between = bars ? ` (${show(y - bars.arrayminus[place])} to ${show(y + bars.array[place])})` : "";
      rows.get(x)[column] = show(y) + between;
    }));
    const made = document.createElement("table");
    const add = (parent, tag, text, scope) => {
      const cell = document.createElement(tag);
      cell.className = "number";
      cell.textContent = text;
      if (scope) cell.scope = scope;
      parent.append(cell);
    };
    const head = made.createTHead().insertRow();
    add(head, "th", "step", "col");
    for (const trace of traces) add(head, "th", trace.name.replace(/&lt;/g, "<").replace(/&gt;/g, ">").replace(/&amp;/g, "&"), "col");
    const body = made.createTBody();
    for (const [x, values] of [...rows].sort((a, b) => a[0] - b[0])) {
      const row = body.insertRow();
      add(row, "th", x, "row");
      for (const value of values) add(row, "td", value);
    }
    return made;
  };
  for (const details of document.querySelectorAll("[data-table]")) {
    details.addEventListener("toggle", () => {
      const place = details.querySelector(".scroll");
      if (details.open && !place.firstChild) place.append(table(figures[details.dataset.table]));
    });
  }

  // ---- plots
  const unpack = async () => {
    const packed = document.getElementById("plotly");
    if (!packed) return; // nothing to draw
    const bytes = Uint8Array.from(atob(packed.textContent), (character) => character.charCodeAt(0));
    packed.remove();
    const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
    const script = document.createElement("script");
    script.textContent = await new Response(stream).text();
    document.head.append(script);
  };
  const draw = (element) => {
    if (element.classList.contains("drawn")) return;
    element.classList.add("drawn");
    const name = element.dataset.figure;
    const spec = figures[name];
    const layout = structuredClone(spec.layout);
    layout.font = { family: "system-ui, sans-serif", size: 12 };
    layout.hoverlabel = { font: {} };
    for (const [path, value] of Object.entries(colors(layout))) {
      const keys = path.split(".");
      const last = keys.pop();
      let place = layout;
      for (const key of keys) place = place[key] ??= {};
      place[last] = value;
    }
    if (narrow()) layout.margin = { ...layout.margin, l: 44, r: 6 };
    if (narrow() && layout.showlegend !== false) { // its entries need more rows
      const more = Math.max(0, 30 + 19 * Math.ceil(spec.data.filter((trace) => trace.showlegend !== false).length / 2) - layout.margin.t);
      layout.margin.t += more;
      layout.height += more;
      element.style.setProperty("--tall", `${layout.height}px`);
    }
    element.dataset.height = layout.height;
    if (matchMedia("(pointer: coarse)").matches) layout.dragmode = false; // fingers scroll the page
    Plotly.newPlot(element, spec.data, layout, { responsive: true, displayModeBar: false, doubleClick: "reset" });
  };
  const drawVisible = async () => {
    for (const element of document.querySelectorAll(".plot")) {
      if (element.closest("details:not([open])")) continue;
      draw(element);
      root.dataset.first ??= Math.round(performance.now());
      await new Promise((resume) => setTimeout(resume)); // the page can be read and scrolled meanwhile
    }
  };
  for (const more of document.querySelectorAll("details.more")) more.addEventListener("toggle", drawVisible);
  for (const button of document.querySelectorAll("[data-save]")) {
    button.addEventListener("click", () => {
      const plot = button.closest(".card").querySelector(".plot");
      if (!plot.classList.contains("drawn")) return;
      const filename = `${document.title} ${plot.dataset.figure}`.replace(/[^A-Za-z0-9._-]+/g, "-");
      Plotly.downloadImage(plot, { format: button.dataset.save, filename, scale: 2 });
    });
  }

  // ---- paper is narrower than most screens, and white
  const fit = (width, share, theme) => {
    root.dataset.theme = theme;
    for (const element of document.querySelectorAll(".plot.drawn")) {
      const layout = figures[element.dataset.figure].layout;
      Plotly.relayout(element, { ...colors(layout), width, height: share * element.dataset.height, autosize: !width });
    }
  };
  let before;
  addEventListener("beforeprint", () => { before = root.dataset.theme; fit(640, 0.85, "light"); });
  addEventListener("afterprint", () => {
    fit(undefined, 1, before);
    if (!before) delete root.dataset.theme;
  });

  unpack().then(drawVisible).then(
    () => { root.dataset.ready = Math.round(performance.now()); },
    (fault) => {
      for (const element of document.querySelectorAll(".plot")) {
        element.textContent = `This browser cannot draw the plot (${fault}); the table below has its numbers.`;
      }
    },
  );
})();
