// Figures that run: the server says how long they have run, and the page counts on.
"use strict";
(() => {
  let told = {};
  let since = 0;

  // As the server writes them (pages/quantities.py), in whole seconds.
  const words = (seconds) => {
    const whole = Math.round(seconds);
    if (whole >= 7200) return `${Number((whole / 3600).toPrecision(3))}\u00a0h`;
    return whole >= 120 ? `${Math.floor(whole / 60)}\u00a0min ${whole % 60}\u00a0s` : `${whole}\u00a0s`;
  };

  const draw = () => {
    const more = (performance.now() - since) / 1000;
    for (const [name, seconds] of Object.entries(told)) {
      const quoted = CSS.escape(name);
      for (const clock of document.querySelectorAll(`[data-clock="${quoted}"], [data-figure="${quoted}"]`)) {
        const text = words(seconds + more);
        if (clock.textContent !== text) clock.textContent = text;
        const cell = clock.closest("td");
        if (cell && "sort" in cell.dataset) cell.dataset.sort = seconds + more;
      }
    }
  };

  // Takes how long things have run by now, in seconds, by their names.
  globalThis.setClocks = (clocks) => {
    told = clocks;
    since = performance.now();
    draw();
  };
  setClocks(JSON.parse(document.getElementById("content").dataset.clocks));
  setInterval(draw, 1000);
})();
