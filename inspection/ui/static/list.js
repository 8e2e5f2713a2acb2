// The list of runs: asks for rows that have changed, sorts, filters, and picks runs to compare.
"use strict";
(() => {
  const content = document.getElementById("content");
  const body = document.getElementById("rows");
  const heads = Array.from(document.querySelectorAll("#runs thead th"));
  const filter = document.getElementById("filter");
  const compare = document.getElementById("compare");
  const count = document.getElementById("count");
  const MOST_COMPARED = 8;
  let version = content.dataset.version;
  let order = Array.from(body.rows, (row) => row.dataset.run);
  let sorted = { column: -1, down: false };
  let picked = [];

  const say = (element, text) => {
    if (element.textContent !== text) element.textContent = text;
    element.hidden = !text;
  };

  const rowsByRun = () => new Map(Array.from(body.rows, (row) => [row.dataset.run, row]));

  const valueOf = (row) => {
    const text = row.cells[sorted.column].dataset.sort;
    if (text === undefined) return null;
    const number = Number(text);
    return text !== "" && !Number.isNaN(number) ? number : text;
  };

  const arrange = () => {
    const rows = rowsByRun();
    let wanted = order.map((run) => rows.get(run)).filter(Boolean);
    if (sorted.column >= 0) {
      const sign = sorted.down ? -1 : 1;
      const keyed = wanted.map((row) => [valueOf(row), row]);
      keyed.sort(([a], [b]) => {
        // What has no value comes last, whichever way.
        if (a === null || b === null) return (a === null) - (b === null);
        if (typeof a === typeof b && typeof a === "number") return sign * (a - b);
        return sign * String(a).localeCompare(String(b), undefined, { numeric: true });
      });
      wanted = keyed.map(([, row]) => row);
    }
    const held = document.activeElement;
    wanted.forEach((row, place) => {
      if (body.rows[place] !== row) body.insertBefore(row, body.rows[place] || null);
    });
    if (body.contains(held)) held.focus({ preventScroll: true });
  };

  const sift = () => {
    const terms = filter.value.toLowerCase().split(/\s+/).filter(Boolean);
    let shown = 0;
    for (const row of body.rows) {
      const text = row.textContent.toLowerCase();
      row.hidden = !terms.every((term) => text.includes(term));
      if (!row.hidden) shown += 1;
    }
    const runs = body.rows.length === 1 ? "run" : "runs";
    say(count, `${terms.length ? `${shown} of ` : ""}${body.rows.length} ${runs}`);
    document.getElementById("empty").hidden = body.rows.length > 0;
  };

  const mark = () => {
    for (const box of body.querySelectorAll("input[type=checkbox]")) box.checked = picked.includes(box.value);
    compare.disabled = picked.length < 2;
    compare.textContent = picked.length < 2 ? "Compare" : `Compare ${picked.length}`;
  };

  const make = (html) => {
    const template = document.createElement("template");
    template.innerHTML = `<table><tbody>${html}</tbody></table>`;
    return template.content.querySelector("tr");
  };

  const take = (news) => {
    const rows = rowsByRun();
    for (const [run, html] of Object.entries(news.rows)) {
      const before = rows.get(run);
      const row = make(html);
      if (!before) {
        body.append(row);
        continue;
      }
      const held = before.contains(document.activeElement) ? document.activeElement.tagName : null;
      before.replaceWith(row);
      if (held) row.querySelector(held)?.focus({ preventScroll: true });
    }
    if (news.order) {
      order = news.order;
      const kept = new Set(order);
      for (const [run, row] of rowsByRun()) if (!kept.has(run)) row.remove();
      picked = picked.filter((run) => kept.has(run));
    }
    version = news.version;
    if (news.order || Object.keys(news.rows).length) {
      arrange();
      mark();
      sift();
    }
    setClocks(news.clocks);
    say(document.getElementById("problem"), news.problem);
  };

  const look = async () => {
    const before = version;
    take(await server.ask(`/api/rows?since=${encodeURIComponent(version)}`));
    return { changed: version !== before, wait: 0 };
  };

  heads.forEach((head, column) => {
    head.querySelector("button")?.addEventListener("click", () => {
      // Of numbers the largest first, of words the first.
      const down = sorted.column === column ? !sorted.down : !head.classList.contains("words");
      sorted = { column, down };
      for (const other of heads) {
        if (other.hasAttribute("aria-sort")) other.setAttribute("aria-sort", "none");
      }
      head.setAttribute("aria-sort", down ? "descending" : "ascending");
      arrange();
    });
  });
  filter.addEventListener("input", sift);
  body.addEventListener("change", (event) => {
    const run = event.target.value;
    picked = picked.filter((other) => other !== run);
    // Of nine, the one that was picked first is given up.
    if (event.target.checked) picked = [...picked.slice(1 - MOST_COMPARED), run];
    mark();
  });
  compare.addEventListener("click", () => {
    // As the server has quoted them.
    location.assign(`/compare?${picked.map((run) => `run=${run}`).join("&")}`);
  });
  document.getElementById("controls").hidden = false;
  mark();
  sift();
  server.follow(look, 0);
})();
