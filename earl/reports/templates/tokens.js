  // ---- tokens of the model, coloured by what the reader asks for
  const BLUE = "47,127,196", ORANGE = "217,95,40";
  const shade = (rgb, strength) => `rgba(${rgb},${(0.08 + 0.55 * Math.min(1, strength)).toFixed(3)})`;
  const fixed = (value, digits = 2) => value === null || value === undefined ? "–" : String(+value.toPrecision(digits + 1));
  const percent = (logprob) => {
    const share = 100 * Math.exp(Math.min(0, logprob));
    return share >= 99.995 ? ">99.99 %" : share < 0.01 ? "<0.01 %" : `${share < 10 ? share.toFixed(2) : share.toFixed(1)} %`;
  };
  const signed = (value, most) => value === null || value === undefined ? null : shade(value >= 0 ? BLUE : ORANGE, Math.abs(value) / most);
  // Each way of colouring: the colour of one token, and what the ends of its scale mean.
  const colourings = (most) => ({
    none: { label: "nothing", colour: () => null },
    author: { label: "author", colour: () => null },
    logprob: {
      label: "log-probability", colour: (token) => token.logprob === null ? null : shade(ORANGE, -token.logprob / 4),
      scale: [["likely: log-prob 0, 100 %", shade(ORANGE, 0)], ["unlikely: log-prob −4 and below, under 2 %", shade(ORANGE, 1)]],
    },
    advantage: {
      label: "advantage", colour: (token) => token.ratio === null ? null : signed(token.advantage, most.advantage),
      scale: [[`discouraged: −${fixed(most.advantage)}`, shade(ORANGE, 1)], ["0", "transparent"], [`encouraged: +${fixed(most.advantage)}`, shade(BLUE, 1)]],
      needs: "advantage",
    },
    ratio: {
      label: "importance ratio", colour: (token) => token.ratio === null ? null : signed(Math.log(token.ratio), most.ratio),
      scale: [[`less likely after the update: ×${fixed(Math.exp(-most.ratio))}`, shade(ORANGE, 1)], ["×1", "transparent"], [`more likely: ×${fixed(Math.exp(most.ratio))}`, shade(BLUE, 1)]],
      needs: "ratio",
    },
  });
  // The largest size of each signed number over all episodes, for the ends of the scales.
  const extremes = (episodes) => {
    const most = { advantage: 0, ratio: 0, known: false };
    for (const { turns } of episodes) for (const { advantage, reply } of turns) {
      if (advantage !== null) { most.known = true; most.advantage = Math.max(most.advantage, Math.abs(advantage)); }
      for (const ratio of reply.ratios) if (ratio > 0) most.ratio = Math.max(most.ratio, Math.abs(Math.log(ratio)));
    }
    return { known: most.known, advantage: most.advantage || 1, ratio: Math.min(Math.max(most.ratio, 0.01), Math.log(4)) };
  };
  const tokensOf = ({ reply, advantage }) => reply.texts.map((text, place) => ({
    text, author: reply.authors[place], logprob: reply.logprobs[place], ratio: reply.ratios[place] ?? null, advantage,
    mark: reply.marks.includes(place),
  }));
  const told = (token, authors) => [
    authors[token.author], token.logprob === null ? "" : `${percent(token.logprob)}, log-prob ${fixed(token.logprob)}`,
    token.ratio === null ? "" : `advantage ${fixed(token.advantage)}, ratio ${fixed(token.ratio, 3)}`,
  ].filter(Boolean).join(" · ");
  const leftOut = ([, number]) => make("span", { class: "note", text: ` […${number.toLocaleString("en")} tokens left out…] ` });
  const drawTokens = (turn, authors, colouring, mode) => {
    const said = make("div", { class: `said reply by-${mode}` });
    tokensOf(turn).forEach((token, place) => {
      if (turn.reply.cut?.[0] === place) said.append(leftOut(turn.reply.cut));
      const span = make("span", { class: `${authors[token.author]}${token.mark ? " mark" : ""}`, "data-told": told(token, authors), text: token.text });
      const ground = colouring.colour(token);
      if (ground) span.style.backgroundColor = ground;
      said.append(span);
    });
    return said;
  };
  const drawLegend = (colouring, mode, authors) => {
    const swatch = (text, ground, kind = "") => {
      const item = make("span", { class: `swatch-text ${kind}`, text });
      if (ground) item.style.backgroundColor = ground;
      return item;
    };
    if (mode === "author") return make("p", { class: "legend by-author" }, ...authors.map((name) => swatch(name, null, name)));
    if (!colouring.scale) return make("p", { class: "legend" });
    const apart = colouring.needs ? [make("span", { text: "no colour: not learned from" })] : [];
    return make("p", { class: "legend" }, ...colouring.scale.map(([text, ground]) => swatch(text, ground)), ...apart);
  };
  // The same numbers for who cannot point: made when opened.
  const tokenTable = (turn, authors) => {
    const place = make("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": `Tokens of turn ${turn.number}` });
    const details = make("details", { class: "numbers" }, make("summary", { text: "numbers" }), place);
    details.addEventListener("toggle", () => {
      if (!details.open || place.firstChild) return;
      const head = ["token", "author", "probability", "log-prob", "advantage", "ratio"].map((text) => make("th", { scope: "col", text }));
      const rows = tokensOf(turn).map((token) => make("tr", {}, make("th", { scope: "row", class: "piece", text: token.text }), ...[
        authors[token.author], token.logprob === null ? "–" : percent(token.logprob), fixed(token.logprob),
        token.ratio === null ? "–" : fixed(token.advantage), fixed(token.ratio, 3),
      ].map((text) => make("td", { text }))));
      place.append(make("table", {}, make("thead", {}, make("tr", {}, ...head)), make("tbody", {}, ...rows)));
    });
    return details;
  };
