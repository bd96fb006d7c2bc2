  // ---- plots: those near the window at once, the others when there is time, all of them before printing
  let figures = {};
  const choiceOf = (name) => Number(document.querySelector(`[data-choices="${name}"]`)?.value ?? 0);
  const narrow = () => window.innerWidth < 640;
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
  const prepared = (spec, element) => {
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
    if (layout.showlegend !== false) { // its entries need more rows
      const entries = spec.data.filter((trace) => trace.showlegend !== false && !(trace.meta?.choice > 0)).map((trace) => plainName(trace.name).length);
      const room = Math.max(1, Math.floor(element.clientWidth / (40 + 6.5 * Math.max(8, ...entries))));
      const more = Math.max(0, 30 + 19 * Math.ceil(entries.length / room) - layout.margin.t);
      layout.margin.t += more;
      layout.height += more;
      element.style.setProperty("--tall", `${layout.height}px`);
    }
    if (matchMedia("(pointer: coarse)").matches) layout.dragmode = false; // fingers scroll the page
    return layout;
  };
  const draw = (element) => {
    if (element.classList.contains("drawn")) return;
    element.classList.add("drawn");
    const spec = figures[element.dataset.figure];
    const layout = prepared(spec, element);
    element.dataset.height = layout.height;
    const traces = spec.data.map((trace) => trace.meta?.choice === undefined ? trace : { ...trace, visible: trace.meta.choice === choiceOf(element.dataset.figure) });
    Plotly.newPlot(element, traces, layout, { responsive: true, displayModeBar: false, doubleClick: "reset" });
    root.dataset.first ??= Math.round(performance.now());
  };
  const waiting = () => [...document.querySelectorAll(".plot:not(.drawn)")].filter((element) => !element.closest("details:not([open])"));
  const near = (element) => {
    const box = element.getBoundingClientRect();
    return box.top < 1.5 * innerHeight && box.bottom > -0.5 * innerHeight;
  };
  const breathe = () => new Promise((resume) => setTimeout(resume)); // the page can be read and scrolled meanwhile
  const drawNear = async () => {
    const [first, ...others] = waiting();
    if (first) draw(first); // so that something is seen before the reader gets there
    for (const element of others.filter(near)) { await breathe(); draw(element); }
  };
  const rest = () => new Promise((resume) => (window.requestIdleCallback ?? setTimeout)(resume, { timeout: 200 }));
  const drawRest = async () => {
    for (let left = waiting(); left.length; left = waiting()) { await rest(); draw(left[0]); }
    root.dataset.complete ??= Math.round(performance.now());
  };
  const watchPlots = () => {
    const observer = new IntersectionObserver((entries) => {
      for (const entry of entries) if (entry.isIntersecting) { draw(entry.target); observer.unobserve(entry.target); }
    }, { rootMargin: "50% 0px" });
    for (const element of document.querySelectorAll(".plot")) observer.observe(element);
    for (const more of document.querySelectorAll("details.more")) more.addEventListener("toggle", drawRest);
  };
  const recolorPlots = () => {
    for (const element of document.querySelectorAll(".plot.drawn")) Plotly.relayout(element, colors(figures[element.dataset.figure].layout));
  };
  const usePlots = () => {
    for (const select of document.querySelectorAll("[data-choices]")) {
      select.addEventListener("change", () => {
        const name = select.dataset.choices, plot = document.getElementById(`plot-${name}`);
        if (plot.classList.contains("drawn")) {
          const visible = figures[name].data.map((trace) => trace.meta?.choice === undefined || trace.meta.choice === Number(select.value));
          Plotly.restyle(plot, { visible });
        }
        fillTable(document.querySelector(`[data-table="${name}"]`), true);
      });
    }
    for (const button of document.querySelectorAll("[data-save]")) {
      button.addEventListener("click", () => {
        const plot = button.closest(".card").querySelector(".plot"), kind = button.dataset.save;
        const filename = `${document.title} ${plot.dataset.figure}`.replace(/[^A-Za-z0-9._-]+/g, "-");
        if (kind === "csv") return save(`${filename}.csv`, "text/csv", csvOf(figures[plot.dataset.figure], choiceOf(plot.dataset.figure)));
        draw(plot);
        return Plotly.downloadImage(plot, { format: kind, filename, scale: 2 });
      });
    }
    for (const details of document.querySelectorAll("[data-table]")) details.addEventListener("toggle", () => fillTable(details));
  };
  const fillTable = (details, anew = false) => {
    const place = details.querySelector(".scroll"), name = details.dataset.table;
    if (anew) place.replaceChildren();
    if (details.open && !place.firstChild) place.append(drawTable(figures[name], choiceOf(name)));
  };

  // ---- paper is narrower than most screens, and white
  const fit = (width, share, theme) => {
    root.dataset.theme = theme;
    for (const element of document.querySelectorAll(".plot.drawn")) {
      const layout = figures[element.dataset.figure].layout;
      Plotly.relayout(element, { ...colors(layout), width, height: share * element.dataset.height, autosize: !width });
    }
  };
  const printPlots = () => {
    let before;
    addEventListener("beforeprint", () => {
      before = root.dataset.theme;
      if (window.Plotly) waiting().forEach(draw);
      fit(640, 0.85, "light");
    });
    addEventListener("afterprint", () => {
      fit(undefined, 1, before);
      if (!before) delete root.dataset.theme;
    });
  };
