  // ---- the table behind each plot, made when it is opened; the same rows are saved as CSV
  const plainName = (name) => (name ?? "").replace(/&lt;/g, "<").replace(/&gt;/g, ">").replace(/&amp;/g, "&");
  const seen = (spec, choice) => spec.data.filter((trace) =>
    !trace.meta?.again && (trace.meta?.choice === undefined || trace.meta.choice === choice));
  const formatter = (spec, trace) => {
    const axis = spec.layout[trace.yaxis === "y2" ? "yaxis2" : "yaxis"] || {};
    return /%/.test(axis.tickformat || "")
      ? (value) => `${+(100 * value).toFixed(3)} %`
      : (value) => String(+value.toPrecision(6));
  };
  // Each row: a step, then for each line null or [value, low, high].
  const rowsOf = (traces) => {
    const rows = new Map();
    traces.forEach((trace, column) => trace.x.forEach((x, place) => {
      if (!rows.has(x)) rows.set(x, Array(traces.length).fill(null));
      const y = trace.y[place], bars = trace.error_y;
      if (y !== null) rows.get(x)[column] = bars ? [y, y - bars.arrayminus[place], y + bars.array[place]] : [y];
    }));
    return [...rows].sort((a, b) => a[0] - b[0]);
  };
  const gridRows = (map) => map.x.map((x, column) => [x, map.z.map((row) => row[column] === null ? null : [row[column]])]);
  const titleOf = (axis) => axis?.title?.text;
  const firstColumn = (spec) => titleOf(spec.layout.xaxis) ?? "step";
  const tableOf = (spec, choice) => {
    const traces = seen(spec, choice);
    if (traces[0]?.type === "heatmap") {
      return { names: traces[0].y.map((row) => `${titleOf(spec.layout.yaxis) ?? "turn"} ${row}`), rows: gridRows(traces[0]), show: () => (v) => String(+v.toPrecision(4)) };
    }
    return { names: traces.map((trace) => plainName(trace.name)), rows: rowsOf(traces), show: (column) => formatter(spec, traces[column]) };
  };
  const drawTable = (spec, choice) => {
    const { names, rows, show } = tableOf(spec, choice);
    const shows = names.map((_, column) => show(column));
    const cell = (found, column) => {
      if (!found) return "";
      const [value, low, high] = found.map(shows[column]);
      return low === undefined ? value : `${value} (${low} to ${high})`;
    };
    const line = ([x, found]) => make("tr", {}, make("th", { scope: "row", class: "number", text: x }),
      ...found.map((values, column) => make("td", { class: "number", text: cell(values, column) })));
    const head = [firstColumn(spec), ...names].map((text) => make("th", { scope: "col", class: "number", text }));
    return make("table", {}, make("thead", {}, make("tr", {}, ...head)), make("tbody", {}, ...rows.map(line)));
  };
  const quoted = (value) => { // what looks like a formula must not be one for a spreadsheet
    const text = typeof value === "string" && /^[=+\-@\t\r]/.test(value) ? `'${value}` : String(value ?? "");
    return /[",\n\r]/.test(text) ? `"${text.replace(/"/g, '""')}"` : text;
  };
  const csvOf = (spec, choice) => {
    const { names, rows } = tableOf(spec, choice);
    const wide = names.map((_, column) => rows.some(([, found]) => found[column]?.length === 3));
    const head = [firstColumn(spec), ...names.flatMap((name, column) => wide[column] ? [name, `${name}, low`, `${name}, high`] : [name])];
    const line = ([x, found]) => [x, ...found.flatMap((values, column) => wide[column] ? values ?? ["", "", ""] : values ?? [""])];
    return [head, ...rows.map(line)].map((row) => row.map(quoted).join(",")).join("\r\n") + "\r\n";
  };
