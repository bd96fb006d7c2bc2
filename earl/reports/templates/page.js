  // ---- the page comes to life: plots near the window, then the episodes, then all other plots
  const start = async () => {
    figures = JSON.parse(await unpacked("figures"));
    usePlots();
    const library = await unpacked("plotly");
    if (library === null) return; // nothing to draw
    const script = document.createElement("script");
    script.textContent = library;
    document.head.append(script);
    await drawNear();
    watchPlots();
    printPlots();
  };
  const readEpisodes = async () => {
    const text = await unpacked("stored");
    if (text !== null) new Browser(JSON.parse(text));
  };
  const fail = (where, told) => (fault) => {
    for (const element of document.querySelectorAll(where)) element.textContent = `${told} (${fault})`;
  };
  followTheme(recolorPlots);
  start()
    .catch(fail(".plot", "This browser cannot draw the plot; the table below has its numbers"))
    .then(() => { root.dataset.ready = Math.round(performance.now()); })
    .then(readEpisodes)
    .catch(fail("#found", "This browser cannot show the episodes"))
    .then(() => { root.dataset.episodes = Math.round(performance.now()); })
    .then(() => (window.Plotly ? drawRest() : null));
