// A page that follows what runs: asks whether it has changed, and puts new sections in place of those that differ.
"use strict";
(() => {
  const EVERY_MS = 2000;
  // A run that has ended may still be verified or registered.
  const ENDED_EVERY_MS = 60000;
  const content = document.getElementById("content");
  const notice = document.getElementById("notice");
  const address = content.dataset.live;
  let digest = content.dataset.digest;
  // A change that would take away what the reader has selected waits.
  let waiting = null;

  const sectionsOf = (root) =>
    new Map(Array.from(root.querySelectorAll("section[id]"), (section) => [section.id, section]));
  const parse = (html) => new DOMParser().parseFromString(html, "text/html").body;
  // What is compared is what the server said, not the document, in which readers open and scroll things.
  let said = new Map(Array.from(sectionsOf(content), ([id, section]) => [id, section.outerHTML]));

  const say = (text) => {
    if (notice.textContent !== text) notice.textContent = text;
    notice.hidden = !text;
  };

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
    const charts = before.querySelector(".live-charts");
    if (charts) after.querySelector("h2").after(charts);
    // A box scrolls only within the page, and what is taken out of it has lost its place.
    const places = new Map(Array.from(before.querySelectorAll(".scroll"), (box) => [box, [box.scrollLeft, box.scrollTop]]));
    before.replaceWith(after);
    carry(before, after, ".scroll", (from, to) => ([to.scrollLeft, to.scrollTop] = places.get(from)));
    if (before.contains(held)) {
      carry(before, after, FOCUSABLE, (from, to) => from === held && to.focus({ preventScroll: true }));
    } else if (charts?.contains(held)) held.focus({ preventScroll: true });
  };

  const isSelected = (section) => {
    const selection = getSelection();
    return selection !== null && !selection.isCollapsed && selection.containsNode(section, true);
  };

  const take = (html) => {
    const fresh = sectionsOf(parse(html));
    const texts = new Map(Array.from(fresh, ([id, section]) => [id, section.outerHTML]));
    const here = sectionsOf(content);
    const sameForm = fresh.size === here.size && Array.from(fresh.keys()).every((id) => here.has(id));
    if (!sameForm) {
      // Sections came or went: the whole, once.
      const charts = content.querySelector(".live-charts");
      content.replaceChildren(...parse(html).children);
      if (charts) document.querySelector("#curves h2")?.after(charts);
      said = texts;
      waiting = null;
    } else {
      let whole = true;
      for (const [id, section] of fresh) {
        if (said.get(id) === texts.get(id)) continue;
        if (isSelected(here.get(id))) {
          whole = false;
          continue;
        }
        swap(here.get(id), document.adoptNode(section));
        said.set(id, texts.get(id));
      }
      waiting = whole ? null : html;
      freshenRest(parse(html));
    }
    document.dispatchEvent(new CustomEvent("shardline:changed"));
  };

  // What stands outside of sections, as a heading with the run's state.
  const freshenRest = (body) => {
    const after = Array.from(body.querySelectorAll("header"));
    const before = Array.from(content.querySelectorAll("header"));
    before.forEach((header, place) => {
      if (after[place] && after[place].outerHTML !== header.outerHTML && !header.contains(document.activeElement)) {
        header.replaceWith(document.adoptNode(after[place]));
      }
    });
  };

  const poll = async () => {
    let wait = EVERY_MS;
    if (!document.hidden) {
      try {
        const asked = performance.now();
        const news = await server.ask(`${address}${address.includes("?") ? "&" : "?"}known=${digest}`);
        wait = Math.max(wait, 2 * (performance.now() - asked));
        if (news.body !== null) keepPlace(() => take(news.body));
        else if (waiting !== null) keepPlace(() => take(waiting));
        digest = news.digest;
        if (news.ended && waiting === null) {
          content.dataset.ended = "";
          wait = Math.max(wait, ENDED_EVERY_MS);
        } else if (!news.ended) {
          delete content.dataset.ended;
        }
        say("");
      } catch (error) {
        say(server.explain(error));
      }
    }
    setTimeout(poll, wait);
  };

  setTimeout(poll, "ended" in content.dataset ? ENDED_EVERY_MS : EVERY_MS);
})();
