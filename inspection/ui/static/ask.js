// Asks the server, again and again too, and says in words why there is no answer.
"use strict";
(() => {
  // A server that has not answered by then hangs, or reads from a bucket that does: the next question finds out.
  const PATIENCE_MS = 30000;
  const KNOWN = "this is what was known last.";

  // What can be said to the reader, in `message`; any other error is a fault of ours.
  class Unanswered extends Error {}

  const reasonOf = async (answer) => {
    const said = await answer.json().catch(() => ({}));
    return String(said.problem || `${answer.status} ${answer.statusText}`).slice(0, 300);
  };

  // Returns the JSON at an address; throws Unanswered.
  const ask = async (address) => {
    const signal = AbortSignal.timeout(PATIENCE_MS);
    let answer;
    try {
      answer = await fetch(address, { signal });
      if (answer.ok) return await answer.json();
    } catch (error) {
      if (error.name === "TimeoutError") throw new Unanswered(`The server does not answer: ${KNOWN}`);
      throw new Unanswered(`Connection lost: ${KNOWN}`);
    }
    throw new Unanswered(`The server says: ${await reasonOf(answer)}; ${KNOWN}`);
  };

  // What to tell the reader of an error; a fault of ours goes to the console too.
  const explain = (error) => {
    if (error instanceof Unanswered) return error.message;
    reportError(error);
    return "This page could not show what is new: load it again.";
  };

  // Looks again and again: every two seconds while something changes, ever more rarely while nothing does.
  const SOON_MS = 2000;
  const RARELY_MS = 10000;
  const notice = document.getElementById("notice");

  // `look` returns whether something has changed, and the least time until the next look.
  const follow = (look, first) => {
    let pause = SOON_MS;
    const again = async () => {
      let wait = 0;
      const asked = performance.now();
      let text = "";
      if (!document.hidden) {
        try {
          const found = await look();
          pause = found.changed ? SOON_MS : Math.min(2 * pause, RARELY_MS);
          wait = found.wait;
        } catch (error) {
          text = explain(error);
        }
        if (notice.textContent !== text) notice.textContent = text;
        notice.hidden = !text;
      }
      // A server that is slow is asked half of the time at most.
      setTimeout(again, Math.max(pause, wait, 2 * (performance.now() - asked)));
    };
    setTimeout(again, Math.max(first, SOON_MS));
  };

  globalThis.server = { ask, explain, follow };
})();
