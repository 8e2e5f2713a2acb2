// What is read stays where it is on the screen while something above it changes its height.
"use strict";
globalThis.keepPlace = (change) => {
  // The first section below the navigation, by its id: the element itself may be replaced.
  const read = Array.from(document.querySelectorAll("section[id]")).find(
    (section) => section.getBoundingClientRect().bottom > 60,
  );
  const top = read?.getBoundingClientRect().top;
  change();
  const after = read && document.getElementById(read.id);
  const moved = after && scrollY > 0 ? after.getBoundingClientRect().top - top : 0;
  if (Math.abs(moved) > 1) scrollBy({ top: moved, behavior: "instant" });
};
