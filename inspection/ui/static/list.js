// The list of runs: asks for rows that have changed, sorts, filters, shows columns that are chosen, and picks runs to compare.
"use strict";
(() => {
  const content = document.getElementById("content");
  const body = document.getElementById("rows");
  const headRow = document.querySelector("#runs thead tr");
  const filter = document.getElementById("filter");
  const compare = document.getElementById("compare");
  const count = document.getElementById("count");
  const choices = document.querySelector("#columns div");
  const MOST_COMPARED = 8;
  const STORED = "shardline:columns";
  let version = content.dataset.version;
  let order = Array.from(body.rows, (row) => row.dataset.run);
  let sorted = { name: "", down: false };
  let picked = [];
  // Names of parameters and metrics that are shown, in their order; -NAME: a column of the list that is not.
  let chosen = [];

  const make = (tag, attributes, ...children) => {
    const element = document.createElement(tag);
    for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
    element.append(...children);
    return element;
  };
  const say = (element, text) => {
    if (element.textContent !== text) element.textContent = text;
    element.hidden = !text;
  };

  const headOf = (name) => Array.from(headRow.cells).find((head) => head.dataset.column === name);
  const rowsByRun = () => new Map(Array.from(body.rows, (row) => [row.dataset.run, row]));

  // Of a row: its parameters and metrics.
  const parsed = new WeakMap();
  const valuesOf = (row) => {
    if (!parsed.has(row)) parsed.set(row, { parameters: {}, metrics: {}, ...JSON.parse(row.dataset.values) });
    return parsed.get(row);
  };
  const asValue = (text) => (text === undefined ? null : text !== "" && !Number.isNaN(Number(text)) ? Number(text) : text);
  // A value by the name of a column or tag; accuracy is test_accuracy too. Null: the run has none.
  const valueOf = (row, name) => {
    if (name === "state") return row.dataset.state;
    const { parameters, metrics } = valuesOf(row);
    for (const known of [name, `test_${name}`]) {
      if (Object.hasOwn(metrics, known)) return metrics[known];
      if (Object.hasOwn(parameters, known)) return parameters[known];
    }
    const tags = Array.from(row.querySelectorAll(".tag"), (tag) => tag.textContent);
    const tag = tags.find((each) => each.startsWith(`${name}=`));
    if (tag !== undefined) return asValue(tag.slice(name.length + 1));
    const head = headOf(name);
    return head ? asValue(row.cells[head.cellIndex].dataset.sort) : null;
  };

  const arrange = () => {
    const rows = rowsByRun();
    let wanted = order.map((run) => rows.get(run)).filter(Boolean);
    const head = headOf(sorted.name);
    if (head) {
      const sign = sorted.down ? -1 : 1;
      const keyed = wanted.map((row) => [asValue(row.cells[head.cellIndex].dataset.sort), row]);
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

  // Conditions (accuracy > 98 %, duration < 2 h, network = resnet) among words that a row has to have.
  const CONDITION = /([A-Za-z_][\w.-]*)\s*(>=|<=|!=|>|<|=)\s*(-?[\d.]+(?:e-?\d+)?\s?(?:%|h|min|m|s)?(?=\s|$)|\S+)/g;
  const UNITS = { h: 3600, min: 60, m: 60, s: 1 };
  const TESTS = {
    ">": (a, b) => a > b,
    "<": (a, b) => a < b,
    ">=": (a, b) => a >= b,
    "<=": (a, b) => a <= b,
    "=": (a, b) => a === b,
    "!=": (a, b) => a !== b,
  };
  const amountOf = (name, text) => {
    const [, digits, unit] = /^(-?[\d.]+(?:e-?\d+)?)\s?(%|h|min|m|s)?$/.exec(text) || [];
    if (digits === undefined || Number.isNaN(Number(digits))) return text.toLowerCase();
    // Goodput is in percent here, other shares are fractions.
    if (unit === "%") return name === "goodput" ? Number(digits) : Number(digits) / 100;
    return Number(digits) * (UNITS[unit] || 1);
  };
  const parseFilter = () => {
    const conditions = [];
    const words = filter.value.replace(CONDITION, (_, name, sign, text) => {
      conditions.push({ name, sign, amount: amountOf(name, text) });
      return " ";
    });
    return { conditions, words: words.toLowerCase().split(/\s+/).filter(Boolean) };
  };
  const meets = (row, { name, sign, amount }) => {
    const value = valueOf(row, name);
    if (value === null || (typeof amount === "number") !== (typeof value === "number")) return false;
    if (typeof value === "number") return TESTS[sign](value, amount);
    // Of "fp16, unproven" each part is a value too.
    const parts = [value.toLowerCase(), ...value.toLowerCase().split(", ")];
    return sign === "!=" ? !parts.includes(amount) : parts.some((part) => TESTS[sign](part, amount));
  };

  const sift = () => {
    const { conditions, words } = parseFilter();
    let shown = 0;
    for (const row of body.rows) {
      const text = `${row.textContent} ${row.querySelector("time")?.title || ""}`.toLowerCase();
      row.hidden = !(words.every((word) => text.includes(word)) && conditions.every((each) => meets(row, each)));
      if (!row.hidden) shown += 1;
    }
    const runs = body.rows.length === 1 ? "run" : "runs";
    const unknown = conditions.map((each) => each.name).filter((name) => Array.from(body.rows).every((row) => valueOf(row, name) === null));
    const whole = words.length + conditions.length ? `${shown} of ` : "";
    say(count, `${whole}${body.rows.length} ${runs}${unknown.length ? `; no run has ${unknown.join(", ")}` : ""}`);
    document.getElementById("empty").hidden = body.rows.length > 0;
  };

  const mark = () => {
    for (const box of body.querySelectorAll("input[type=checkbox]")) box.checked = picked.includes(box.value);
    compare.disabled = picked.length < 2;
    compare.textContent = picked.length < 2 ? "Compare" : `Compare ${picked.length}`;
  };

  const show = (value) => (typeof value === "number" ? String(Number(value.toPrecision(4))) : (value ?? ""));
  const isHidden = (name) => name.startsWith("-");
  // Columns of the list itself that may be hidden.
  const ownHeads = Array.from(headRow.querySelectorAll("[data-column]:not([data-column=run])"));
  const cover = (row) => {
    for (const head of ownHeads) row.cells[head.cellIndex].hidden = chosen.includes(`-${head.dataset.column}`);
  };
  // Hides what is not chosen of a row's own columns, and puts the chosen ones behind them.
  const dress = (row) => {
    for (const cell of row.querySelectorAll(".extra")) cell.remove();
    cover(row);
    const { parameters, metrics } = valuesOf(row);
    for (const name of chosen.filter((each) => !isHidden(each))) {
      const value = parameters[name] ?? metrics[name];
      const cell = make("td", { class: typeof value === "string" ? "extra words" : "extra" }, show(value));
      if (value !== undefined) cell.dataset.sort = value;
      row.append(cell);
    }
  };
  const ago = (seconds) => {
    if (seconds < 60) return "just now";
    const [size, unit] = seconds < 5400 ? [60, "min"] : seconds < 129600 ? [3600, "h"] : [86400, "days"];
    return `${Math.round(seconds / size)}\u00a0${unit}\u00a0ago`;
  };
  const age = () => {
    for (const time of body.querySelectorAll("time")) {
      if (!time.title) time.title = time.textContent;
      const text = ago((Date.now() - Date.parse(time.dateTime)) / 1000);
      if (time.textContent !== text) time.textContent = text;
    }
  };

  const sortBy = (head) => {
    const name = head.dataset.column;
    // Of numbers the largest first, of words the first.
    sorted = { name, down: sorted.name === name ? !sorted.down : !head.classList.contains("words") };
    for (const other of headRow.querySelectorAll("[aria-sort]")) other.setAttribute("aria-sort", "none");
    head.setAttribute("aria-sort", sorted.down ? "descending" : "ascending");
    arrange();
  };

  // Of all rows, the names of a kind, in the order in which they come.
  const namesOf = (kind) => Array.from(new Set(Array.from(body.rows).flatMap((row) => Object.keys(valuesOf(row)[kind]))));
  const offer = () => {
    const own = ownHeads.map((head) => `-${head.dataset.column}`);
    const found = { Columns: own, Parameters: namesOf("parameters"), Metrics: namesOf("metrics") };
    const state = JSON.stringify(found);
    if (choices.dataset.state === state) return;
    choices.dataset.state = state;
    choices.replaceChildren(
      ...Object.entries(found).map(([title, names]) =>
        make(
          "fieldset",
          {},
          make("legend", {}, title),
          ...names.map((name) => {
            const box = make("input", { type: "checkbox", value: name });
            box.checked = chosen.includes(name) !== isHidden(name);
            return make("label", {}, box, ` ${name.replace(/^-/, "").replaceAll("_", " ")}`);
          }),
        ),
      ),
    );
  };
  const choose = (names) => {
    chosen = names;
    for (const head of headRow.querySelectorAll(".extra")) head.remove();
    cover(headRow);
    for (const name of chosen.filter((each) => !isHidden(each))) {
      const title = make("button", { type: "button" }, name.replaceAll("_", " "));
      headRow.append(make("th", { scope: "col", class: "extra", "data-column": name, "aria-sort": "none" }, title));
    }
    for (const row of body.rows) dress(row);
  };
  // In the address, so that it can be sent to somebody; columns in the browser too, for the next time.
  const remember = () => {
    const query = new URLSearchParams();
    if (chosen.length) query.set("columns", chosen.join(","));
    if (filter.value) query.set("filter", filter.value);
    history.replaceState(null, "", String(query) ? `?${query}` : location.pathname);
    localStorage.setItem(STORED, chosen.join(","));
  };

  const parse = (html) => {
    const template = document.createElement("template");
    template.innerHTML = `<table><tbody>${html}</tbody></table>`;
    return template.content.querySelector("tr");
  };

  const take = (news) => {
    const rows = rowsByRun();
    for (const [run, html] of Object.entries(news.rows)) {
      const before = rows.get(run);
      const row = parse(html);
      dress(row);
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
      offer();
      age();
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

  headRow.addEventListener("click", (event) => {
    if (event.target.closest("button")) sortBy(event.target.closest("th"));
  });
  filter.addEventListener("input", () => {
    sift();
    remember();
  });
  choices.addEventListener("change", (event) => {
    const { checked, value } = event.target;
    const others = chosen.filter((name) => name !== value);
    choose(checked !== isHidden(value) ? [...others, value] : others);
    remember();
  });
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
  const asked = new URLSearchParams(location.search);
  filter.value = asked.get("filter") ?? "";
  choose((asked.get("columns") ?? localStorage.getItem(STORED) ?? "").split(",").filter(Boolean));
  document.getElementById("controls").hidden = false;
  offer();
  age();
  setInterval(age, 60000);
  mark();
  sift();
  server.follow(look, 0);
})();
