// A page that follows what runs: asks whether it has changed, and puts new sections in place of those that differ.
"use strict";
(() => {
  const EVERY_MS = 2000;
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

  // Where an element is below its section: tags and places, as long as the page's form stays what it was.
  const pathOf = (element, section) => {
    const path = [];
    for (let node = element; node !== section; node = node.parentElement) {
      path.unshift(Array.from(node.parentElement.children).indexOf(node));
    }
    return path;
  };
  const follow = (section, path) => path.reduce((node, place) => node?.children[place], section);

  const swap = (before, after) => {
    const held = before.contains(document.activeElement) ? document.activeElement : null;
    const path = held && pathOf(held, before);
    const open = Array.from(before.querySelectorAll("details"), (details) => details.open);
    const scrolled = Array.from(before.querySelectorAll(".scroll"), (box) => [box.scrollLeft, box.scrollTop]);
    after.querySelectorAll("details").forEach((details, place) => {
      if (place < open.length) details.open = open[place];
    });
    const charts = before.querySelector(".live-charts");
    if (charts) after.querySelector("h2").after(charts);
    before.replaceWith(after);
    after.querySelectorAll(".scroll").forEach((box, place) => {
      if (place < scrolled.length) [box.scrollLeft, box.scrollTop] = scrolled[place];
    });
    if (held) {
      const same = held.id ? document.getElementById(held.id) : follow(after, path);
      if (same?.tagName === held.tagName) same.focus({ preventScroll: true });
    }
  };

  const isSelected = (section) => {
    const selection = getSelection();
    return selection !== null && !selection.isCollapsed && selection.containsNode(section, true);
  };

  // The section that is read now: it stays where it is on the screen.
  const anchorOf = () => {
    for (const section of content.querySelectorAll("section[id]")) {
      const box = section.getBoundingClientRect();
      if (box.bottom > 60) return [section.id, box.top];
    }
    return null;
  };

  const take = (html) => {
    const fresh = sectionsOf(parse(html));
    const texts = new Map(Array.from(fresh, ([id, section]) => [id, section.outerHTML]));
    const here = sectionsOf(content);
    const sameForm = fresh.size === here.size && Array.from(fresh.keys()).every((id) => here.has(id));
    const anchor = anchorOf();
    if (!sameForm) {
      // Sections came or went: the whole, once.
      const charts = content.querySelector(".live-charts");
      content.replaceChildren(...parse(html).children);
      if (charts) document.querySelector("#curves h2")?.after(charts);
      said = texts;
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
    if (anchor) {
      const section = document.getElementById(anchor[0]);
      const moved = section ? section.getBoundingClientRect().top - anchor[1] : 0;
      if (Math.abs(moved) > 1) scrollBy({ top: moved, behavior: "instant" });
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
        const answer = await fetch(`${address}${address.includes("?") ? "&" : "?"}known=${digest}`);
        if (!answer.ok) throw new Error(answer.statusText);
        const news = await answer.json();
        wait = Math.max(wait, 2 * (performance.now() - asked));
        say("");
        if (news.body !== null) take(news.body);
        else if (waiting !== null) take(waiting);
        digest = news.digest;
        if (news.ended && waiting === null) {
          content.dataset.ended = "";
          return;
        }
      } catch {
        say("Connection lost: this is what was known last.");
      }
    }
    setTimeout(poll, wait);
  };

  if (!("ended" in content.dataset)) setTimeout(poll, EVERY_MS);
})();
