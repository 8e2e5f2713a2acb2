// Asks for the curves of one run or of two, as often as the page hears of new ones, and has them drawn.
"use strict";
(() => {
  const addresses = document.getElementById("content").dataset.curves.split(" ");
  // Until curves that could not be loaded are asked for again.
  const RETRY_MS = 5000;
  // Of loads that are under way at once the newest counts.
  let newest = 0;
  let retry = 0;

  const problem = Object.assign(document.createElement("p"), { className: "missing block", id: "curves-problem" });
  problem.setAttribute("role", "status");
  const complain = (text) => {
    const heading = document.querySelector("#curves :is(summary, h2)");
    if (!text) problem.remove();
    else if (heading && !(problem.isConnected && problem.textContent === text)) {
      problem.textContent = text;
      heading.after(problem);
    }
  };

  // A page that is open for hours may lose the server: what is drawn stays.
  const load = async () => {
    const mine = ++newest;
    clearTimeout(retry);
    try {
      const answers = await Promise.all(addresses.map(server.ask));
      if (mine !== newest) return;
      keepPlace(() => curves.show(answers));
      complain("");
    } catch (error) {
      if (mine !== newest) return;
      complain(`The curves could not be loaded. ${server.explain(error)}`);
      retry = setTimeout(load, RETRY_MS);
    }
  };
  document.addEventListener("shardline:changed", load);
  load();
})();
