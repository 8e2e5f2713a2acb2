// A page that follows what runs: asks for sections that have changed, and puts them in place of those that are there.
"use strict";
(() => {
  // A run that has ended may still be verified or registered.
  const ENDED_MS = 60000;
  const content = document.getElementById("content");
  const address = content.dataset.live;
  let digest = content.dataset.digest;
  // Sections by their ids; a change that would take away what the reader has selected waits here.
  const waiting = new Map();

  const parse = (html) => new DOMParser().parseFromString(html, "text/html").body.firstElementChild;

  // What an element is to its reader: the same one is looked for in the new section.
  const nameOf = (element) => {
    const own = element.id || element.getAttribute("href") || element.getAttribute("aria-label");
    return `${element.tagName} ${own || element.querySelector("summary")?.textContent || ""}`;
  };
  // Elements by their names; of equal names, in their order.
  const namesOf = (section, selector) => {
    const found = new Map();
    for (const element of section.querySelectorAll(selector)) {
      const name = nameOf(element);
      let number = 0;
      while (found.has(`${number} ${name}`)) number += 1;
      found.set(`${number} ${name}`, element);
    }
    return found;
  };
  // Hands what each element of a kind is like on to the one of the same name.
  const carry = (before, after, selector, hand) => {
    const old = namesOf(before, selector);
    for (const [name, element] of namesOf(after, selector)) if (old.has(name)) hand(old.get(name), element);
  };
  const FOCUSABLE = "a[href], button, input, select, summary, [tabindex]";

  const swap = (before, after) => {
    const held = document.activeElement;
    carry(before, after, "details", (from, to) => (to.open = from.open));
    // A box scrolls only within the page, and what is taken out of it has lost its place.
    const places = new Map(Array.from(before.querySelectorAll(".scroll"), (box) => [box, [box.scrollLeft, box.scrollTop]]));
    before.replaceWith(after);
    if (after.id === "curves") globalThis.curves?.attach();
    carry(before, after, ".scroll", (from, to) => ([to.scrollLeft, to.scrollTop] = places.get(from)));
    if (before.contains(held)) {
      carry(before, after, FOCUSABLE, (from, to) => from === held && to.focus({ preventScroll: true }));
    } else if (held.isConnected && held !== document.activeElement) held.focus({ preventScroll: true });
  };

  const isSelected = (section) => {
    const selection = getSelection();
    return selection !== null && !selection.isCollapsed && selection.containsNode(section, true);
  };

  const take = () => {
    for (const [id, html] of waiting) {
      const here = id === "header" ? content.querySelector("header") : document.getElementById(id);
      // A section that is not here: the server is of another version than this page.
      if (here === null) location.reload();
      else if (!isSelected(here)) {
        swap(here, document.adoptNode(parse(html)));
        waiting.delete(id);
      }
    }
  };

  const look = async () => {
    const news = await server.ask(`${address}${address.includes("?") ? "&" : "?"}known=${digest}`);
    const changed = news.digest !== digest;
    const charts = news.digest.split(".").pop() !== digest.split(".").pop();
    digest = news.digest;
    for (const [id, html] of Object.entries(news.parts)) waiting.set(id, html);
    if (waiting.size) keepPlace(take);
    setClocks(news.clocks);
    if (charts) document.dispatchEvent(new CustomEvent("shardline:changed"));
    const ended = news.ended && waiting.size === 0;
    if (ended) content.dataset.ended = "";
    else delete content.dataset.ended;
    return { changed, wait: ended ? ENDED_MS : 0 };
  };

  server.follow(look, "ended" in content.dataset ? ENDED_MS : 0);
})();
