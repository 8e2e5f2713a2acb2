// Asks the server, and says in words why there is no answer.
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

  globalThis.server = { ask, explain };
})();
