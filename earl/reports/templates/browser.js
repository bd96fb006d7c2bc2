  // ---- the trajectory browser: filters, a list, and the chosen episode
  const FILTERS = { run: "Run", outcome: "Outcome", opponent: "Opponent", seat: "Seat", stop: "Stopped", step: "Step" };
  const ORDERS = {
    "latest step first": (a, b) => b.run === a.run ? b.step - a.step : 0,
    "earliest step first": (a, b) => a.step - b.step,
    "highest reward first": (a, b) => b.reward - a.reward,
    "lowest reward first": (a, b) => a.reward - b.reward,
    "most tokens first": (a, b) => b.tokens - a.tokens,
    "most turns first": (a, b) => b.length - a.length,
    "most illegal replies first": (a, b) => b.illegal - a.illegal,
    "least likely replies first": (a, b) => (a.logprob ?? 0) - (b.logprob ?? 0),
  };
  const plural = (number, noun) => `${number.toLocaleString("en")} ${noun}${number === 1 ? "" : "s"}`;

  class Browser {
    constructor({ authors, runs, episodes }) {
      Object.assign(this, { authors, runs, episodes });
      this.filters = {};
      this.mode = "author";
      this.marks = false;
      this.colourings = colourings(extremes(episodes));
      this.known = extremes(episodes).known;
      this.texts = new Map();
      for (const name of ["list", "episode", "found", "search", "sort", "clear"]) this[`$${name}`] = document.getElementById(name);
      this.addFilters();
      this.listen();
      this.apply();
    }

    value(episode, name) { return name === "run" ? this.runs[episode.run] : String(episode[name]); }

    addFilters() {
      for (const [name, title] of Object.entries(FILTERS)) {
        const values = [...new Set(this.episodes.map((episode) => this.value(episode, name)))].filter(Boolean);
        if (values.length < 2) continue;
        values.sort((a, b) => name === "step" ? b - a : a < b ? -1 : 1);
        const options = values.map((value) => make("option", { value, text: value }));
        const select = make("select", { "data-filter": name }, make("option", { value: "", text: "all" }), ...options);
        select.addEventListener("change", () => this.apply());
        this.filters[name] = select;
        this.$search.closest("label").before(make("label", {}, `${title} `, select));
      }
      for (const order of Object.keys(ORDERS)) this.$sort.append(make("option", { value: order, text: order }));
    }

    listen() {
      this.$search.addEventListener("input", () => this.apply());
      this.$sort.addEventListener("change", () => this.apply());
      this.$clear.addEventListener("click", () => {
        for (const select of Object.values(this.filters)) select.value = "";
        this.$search.value = "";
        this.apply();
      });
      this.$list.addEventListener("click", (event) => {
        const item = event.target.closest("[role=option]");
        if (item) this.choose(Number(item.dataset.place));
      });
      const jumps = { ArrowDown: 1, ArrowUp: -1, PageDown: 10, PageUp: -10, Home: -1e9, End: 1e9 };
      this.$list.addEventListener("keydown", (event) => {
        if (!(event.key in jumps) || event.altKey || event.ctrlKey || event.metaKey) return;
        event.preventDefault();
        this.move(jumps[event.key]);
      });
      this.$episode.addEventListener("keydown", (event) => {
        const by = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
        if (!by || event.target.matches("input, .scroll") || event.altKey || event.ctrlKey || event.metaKey) return;
        event.preventDefault();
        this.move(by);
        this.$episode.focus({ preventScroll: true });
      });
    }

    textOf(episode) { // all that stands in an episode, in lower case, put together once
      if (!this.texts.has(episode)) {
        const given = (pairs) => pairs.map(([, text]) => text).join("");
        const turns = episode.turns.map((turn) => `${given(turn.given)}${turn.reply.texts.join("")}`);
        this.texts.set(episode, [...turns, given(episode.rest), episode.error ?? ""].join("\n").toLowerCase());
      }
      return this.texts.get(episode);
    }

    apply() {
      const wanted = Object.entries(this.filters).filter(([, select]) => select.value);
      const words = this.$search.value.toLowerCase();
      this.shown = this.episodes.filter((episode) =>
        wanted.every(([name, select]) => this.value(episode, name) === select.value) && (!words || this.textOf(episode).includes(words)));
      this.shown.sort(ORDERS[this.$sort.value]);
      const number = this.shown.length, all = this.episodes.length;
      this.$found.textContent = number === all ? plural(all, "episode") : `${number} of ${plural(all, "episode")}`;
      this.$list.replaceChildren(...this.shown.map((episode, place) => this.item(episode, place)));
      this.choose(Math.max(0, this.shown.indexOf(this.current)));
    }

    item(episode, place) {
      const against = episode.opponent ? `${episode.opponent}, ${episode.seat}` : episode.env;
      const run = this.runs.length > 1 ? `${this.runs[episode.run]}, ` : "";
      const facts = `${run}step ${episode.step}, ${plural(episode.length, "turn")}, reward ${fixed(episode.reward)}${episode.stop === "finished" ? "" : `, ${episode.stop}`}`;
      return make("div", { role: "option", id: `option-${place}`, "data-place": place, "aria-selected": "false" },
        make("span", { class: `outcome ${episode.outcome.replace(" ", "-")}`, text: episode.outcome }), " ",
        make("span", { text: against }), make("span", { class: "when", text: facts }));
    }

    move(by) { this.choose(Math.min(this.shown.length - 1, Math.max(0, this.place + by))); }

    choose(place) {
      this.$list.querySelector("[aria-selected=true]")?.setAttribute("aria-selected", "false");
      this.place = place;
      this.current = this.shown[place];
      const item = this.$list.children[place];
      if (item) {
        item.setAttribute("aria-selected", "true");
        this.$list.setAttribute("aria-activedescendant", item.id);
        const top = item.offsetTop, list = this.$list; // scrolls the list alone, never the page
        if (top < list.scrollTop) list.scrollTop = top;
        if (top + item.offsetHeight > list.scrollTop + list.clientHeight) list.scrollTop = top + item.offsetHeight - list.clientHeight;
      } else this.$list.removeAttribute("aria-activedescendant");
      this.draw();
    }

    draw() {
      const episode = this.current;
      if (!episode) return this.$episode.replaceChildren(make("p", { class: "missing", text: "No episode fits. Choose other filters." }));
      const turns = [];
      let board = null;
      episode.turns.forEach((turn, place) => {
        const gone = episode.length - episode.turns.length;
        if (gone && place === episode.head) turns.push(make("p", { class: "missing", text: `${plural(gone, "turn")} left out` }));
        turns.push(this.turn(turn, board));
        board = turn.boards.at(-1) ?? board;
      });
      if (episode.rest.length) turns.push(this.said("not answered", episode.rest));
      return this.$episode.replaceChildren(...this.head(episode), ...turns);
    }

    head(episode) {
      const place = `step ${episode.step}, episode ${episode.number}`;
      const against = episode.opponent ? `against ${episode.opponent}, ${episode.seat}` : `task ${episode.env}`;
      const facts = [`stopped: ${episode.stop}`, `reward ${fixed(episode.reward)}`, plural(episode.length, "turn"), plural(episode.tokens, "token"),
        episode.illegal ? `${episode.illegal} illegal` : "", this.runs.length > 1 ? `run ${this.runs[episode.run]}` : ""].filter(Boolean).join(" · ");
      const step = (text, by, off) => {
        const button = make("button", { type: "button", disabled: off, text });
        button.addEventListener("click", () => { this.move(by); this.$episode.querySelector(`button[data-by="${by}"]:not([disabled])`)?.focus(); });
        button.dataset.by = by;
        return button;
      };
      return [
        make("h3", {}, make("span", { class: `outcome ${episode.outcome.replace(" ", "-")}`, text: episode.outcome }), ` ${against}, ${place}`),
        make("p", { class: "when", text: facts }),
        episode.error ? make("p", { class: "problems", text: episode.error }) : null,
        make("div", { class: "tools" }, step("Previous", -1, this.place === 0), step("Next", 1, this.place >= this.shown.length - 1), this.chooser(), this.marker()),
        drawLegend(this.colourings[this.mode], this.mode, this.authors),
      ].filter(Boolean);
    }

    chooser() {
      const group = make("fieldset", { class: "colouring" }, make("legend", { text: "Colour tokens by" }));
      for (const [name, { label, needs }] of Object.entries(this.colourings)) {
        const off = Boolean(needs) && !this.known;
        const radio = make("input", { type: "radio", name: "colouring", value: name, disabled: off });
        radio.checked = name === this.mode;
        radio.addEventListener("change", () => {
          this.mode = name;
          this.draw();
          this.$episode.querySelector(`input[value="${name}"]`).focus();
        });
        group.append(make("label", {}, radio, ` ${label}${off ? " (not stored)" : ""}`));
      }
      return group;
    }

    marker() {
      const box = make("input", { type: "checkbox", id: "marks" });
      box.checked = this.marks;
      box.addEventListener("change", () => {
        this.marks = box.checked;
        this.$episode.classList.toggle("marks-off", !this.marks);
      });
      this.$episode.classList.toggle("marks-off", !this.marks);
      return make("label", {}, box, " chat marks");
    }

    said(speaker, pairs, figure = null) {
      const said = make("div", { class: "said by-author" }, ...pairs.map(([author, text]) => make("span", { class: this.authors[author], text })));
      return make("div", { class: "turn" }, make("div", { class: "who", text: speaker }), make("div", { class: "answer" }, figure, said));
    }

    turn(turn, before) {
      const [seen, after] = turn.boards;
      const moved = seen && before ? changedCell(before, seen) : null;
      const caption = moved ? "opponent moved" : "the board";
      const given = this.said(turn.speaker, turn.given, seen ? drawBoard({ ...seen, marked: moved }, caption) : null);
      const facts = [`context ${plural(turn.context, "token")}`, turn.reward ? `reward ${fixed(turn.reward)}` : "",
        turn.advantage === null ? "" : `advantage ${fixed(turn.advantage)}`].filter(Boolean).join(" · ");
      const outline = make("div", { class: "outline", text: facts });
      if (turn.refused) outline.append(" · ", make("strong", { text: "not accepted as an action" }));
      const kind = turn.summary ? "summary" : turn.call ? "tool call" : "model";
      const reply = make("div", { class: "turn own" }, make("div", { class: "who", text: `${kind}, turn ${turn.number}` }),
        make("div", { class: "answer" }, after ? drawBoard(after, "model moved") : null,
          make("div", { class: "stack" }, drawTokens(turn, this.authors, this.colourings[this.mode], this.mode), outline, tokenTable(turn, this.authors))));
      return make("div", { class: "round" }, given, reply);
    }
  }
