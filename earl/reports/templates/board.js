  // ---- boards: a grid of cells, what was just put down outlined
  const describe = (cells) => cells.map((row) => row.map((cell) => cell || "empty").join(" ")).join("; ");
  const drawBoard = ({ cells, marked }, caption) => {
    const marks = [...new Set(cells.flat().filter(Boolean))].sort().reverse(); // X before O
    const board = make("div", { class: cells.length * cells[0].length > 16 ? "board small" : "board", role: "img", "aria-label": `${caption}: ${describe(cells)}` });
    board.style.gridTemplateColumns = `repeat(${cells[0].length}, auto)`;
    cells.forEach((row, y) => row.forEach((text, x) => {
      const last = marked && marked[0] === y && marked[1] === x;
      const kind = text === "X" ? "one" : text === "O" ? "two" : marks.indexOf(text) % 2 ? "two" : "one";
      board.append(make("span", { class: `cell${text ? ` ${kind}` : ""}${last ? " last" : ""}`, text }));
    }));
    return make("figure", { class: "drawn-board" }, board, make("figcaption", { text: caption }));
  };
  // What another player put down between two boards.
  const changedCell = (before, after) => {
    for (let y = 0; y < after.cells.length; y += 1) {
      for (let x = 0; x < after.cells[y].length; x += 1) if (before?.cells[y]?.[x] !== after.cells[y][x]) return [y, x];
    }
    return null;
  };
