  // ---- light and dark: the reader's choice, else the system's
  const root = document.documentElement;
  const dark = () =>
    root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  const color = (name) => getComputedStyle(root).getPropertyValue(`--${name}`).trim();
  const remembered = (value) => {
    try { // storage may be refused for local files
      if (value) localStorage.setItem("earl-report-theme", value);
      return localStorage.getItem("earl-report-theme");
    } catch { return null; }
  };
  const followTheme = (recolor) => {
    const stored = remembered();
    if (stored === "dark" || stored === "light") root.dataset.theme = stored;
    const button = document.getElementById("theme");
    const label = () => { button.textContent = dark() ? "Light colours" : "Dark colours"; };
    button.addEventListener("click", () => {
      root.dataset.theme = dark() ? "light" : "dark";
      remembered(root.dataset.theme);
      label();
      recolor();
    });
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => { label(); recolor(); });
    label();
  };

  // ---- small helpers: whatever is written into the page is written as text
  const make = (tag, attributes = {}, ...children) => {
    const element = document.createElement(tag);
    for (const [name, value] of Object.entries(attributes)) {
      if (value === undefined || value === null || value === false) continue;
      if (name === "text") element.textContent = value;
      else element.setAttribute(name, value === true ? "" : value);
    }
    element.append(...children.filter((child) => child !== null));
    return element;
  };
  const unpacked = async (id) => {
    const place = document.getElementById(id);
    if (!place) return null;
    const letters = atob(place.textContent);
    const bytes = new Uint8Array(letters.length);
    for (let at = 0; at < letters.length; at += 1) bytes[at] = letters.charCodeAt(at);
    place.remove();
    return new Response(new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"))).text();
  };
  const save = (name, type, text) => {
    const link = make("a", { download: name, href: URL.createObjectURL(new Blob([text], { type })) });
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 10000);
  };
