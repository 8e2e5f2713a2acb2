// Learning curves of one run or of several, drawn by uPlot, with what happened to the training as marks.
"use strict";
(() => {
  const content = document.getElementById("content");
  const addresses = content.dataset.curves.split(" ");
  const letters = addresses.length > 1 ? Array.from("ABCDEFGH") : [""];
  const HEIGHT = 300;
  // Shape, colour, and whether several runs in one chart show it too.
  const KINDS = {
    start: ["▷", "--soft", false],
    checkpoint: ["·", "--soft", false],
    best: ["★", "--good", false],
    preemption: ["✕", "--warning", true],
    interruption: ["‖", "--soft", true],
    kill: ["✕", "--soft", true],
    crash: ["✕", "--bad", true],
    resume: ["▶", "--good", true],
    end: ["□", "--soft", false],
  };
  // Of different numbers, so that of eight runs no two look the same.
  const DASHES = [undefined, [7, 5], [2, 3]];
  const COLOURS = ["--s0", "--s1", "--s2", "--s3", "--s4"];
  const dashOf = (at) => DASHES[at % DASHES.length];
  // The first metric of validation, else a loss.
  const WANTED = [/^validation\/(?!loss$)/, /loss/i];
  const INCREMENTS = [1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10800, 21600, 43200, 86400];

  // Until curves that could not be loaded are asked for again.
  const RETRY_MS = 5000;
  // Of loads that are under way at once the newest counts.
  let newest = 0;
  let retry = 0;
  let runs = [];
  let plot = null;
  let zoomed = false;

  const make = (tag, attributes, ...children) => {
    const element = document.createElement(tag);
    for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
    element.append(...children);
    return element;
  };
  const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const number = (value) => (value === null || value === undefined ? "–" : String(Number(value.toPrecision(4))));
  const duration = (seconds) => {
    if (seconds === null || seconds === undefined) return "–";
    const [size, unit] = seconds < 120 ? [1, "s"] : seconds < 7200 ? [60, "min"] : [3600, "h"];
    return `${Number((seconds / size).toPrecision(3))} ${unit}`;
  };

  const curve = make("select", { id: "chart-curve" });
  const over = make("select", { id: "chart-over" }, new Option("time", "times"), new Option("steps", "steps"));
  const canvas = make("div", {
    class: "canvas",
    tabindex: "0",
    role: "group",
    "aria-label": "Chart. Left and right move along the curve, Escape shows it whole.",
  });
  const events = make("ul", { class: "events" });
  const controls = make(
    "form",
    {},
    make("label", {}, "Curve ", curve),
    make("label", {}, "over ", over),
    make("span", { class: "note" }, "Drag to look closer, double click for the whole."),
  );
  const panel = make("div", { class: "live-charts" }, make("h3", {}, "Look closer"), controls, canvas, events);

  const offer = () => {
    const names = Array.from(new Set(runs.flatMap((run) => run.curves.map((found) => found.name))));
    if (names.join("\n") === Array.from(curve.options, (option) => option.value).join("\n")) return;
    const before = curve.value;
    curve.replaceChildren(...names.map((name) => new Option(name, name)));
    const first = WANTED.map((like) => names.find((name) => like.test(name))).find(Boolean);
    curve.value = names.includes(before) ? before : first || names[0];
  };

  // uPlot wants places in order; of a step that was trained twice, the value that counted is the later one.
  const pointsOf = (run) => {
    const found = run.curves.find((one) => one.name === curve.value);
    const points = new Map();
    (found ? found[over.value] : []).forEach((x, at) => {
      // Between attempts there is no value; over steps nothing is missing there.
      if (x !== null && (found.values[at] !== null || over.value === "times")) points.set(x, found.values[at]);
    });
    const xs = Array.from(points.keys()).sort((a, b) => a - b);
    return [xs, xs.map((x) => points.get(x))];
  };

  const marksOf = (run) =>
    run.marks
      .map((mark) => ({ ...mark, x: over.value === "times" ? mark.time : mark.step }))
      .filter((mark) => mark.x !== null && KINDS[mark.kind] && (runs.length === 1 || KINDS[mark.kind][2]));

  // Marks may lie before the first point and behind the last: they belong to the whole.
  const rangeOf = (chart, low, high) => {
    if (zoomed) return [low, high];
    const places = runs.flatMap(marksOf).map((mark) => mark.x);
    const all = [low, high, ...places].filter((place) => place !== null);
    const [first, last] = [Math.min(...all), Math.max(...all)];
    return first < last ? [first, last] : [first - 1, last + 1];
  };

  const drawMarks = (chart) => {
    const { left, top, width, height } = chart.bbox;
    const context = chart.ctx;
    const pixels = devicePixelRatio;
    context.save();
    context.textAlign = "center";
    context.textBaseline = "top";
    context.font = `${12 * pixels}px system-ui, sans-serif`;
    runs.forEach((run, at) => {
      for (const mark of marksOf(run)) {
        const x = chart.valToPos(mark.x, "x", true);
        if (!(x >= left && x <= left + width)) continue;
        const [shape, name] = KINDS[mark.kind];
        context.strokeStyle = context.fillStyle = colour(name);
        context.lineWidth = pixels;
        context.setLineDash((dashOf(at) || []).map((size) => size * pixels));
        context.globalAlpha = mark.kind === "checkpoint" ? 0.5 : 1;
        context.beginPath();
        context.moveTo(x, mark.kind === "checkpoint" ? top + height * 0.94 : top);
        context.lineTo(x, top + height);
        context.stroke();
        if (mark.kind !== "checkpoint") context.fillText(shape + letters[at], x, top - 16 * pixels);
      }
    });
    context.restore();
  };

  const listMarks = () => {
    const counts = new Map();
    for (const mark of runs.flatMap(marksOf)) counts.set(mark.kind, (counts.get(mark.kind) || 0) + 1);
    events.replaceChildren(
      ...Array.from(counts, ([kind, count]) => {
        const shape = make("span", { class: "event-mark", "aria-hidden": "true" }, kind === "checkpoint" ? "╷" : KINDS[kind][0]);
        // By CSSOM: the policy allows no style of a string.
        shape.style.color = colour(KINDS[kind][1]);
        return make("li", {}, shape, `${kind} (${count})`);
      }),
    );
  };

  const dataOf = () => {
    const each = runs.map(pointsOf);
    return each.length === 1 ? each[0] : uPlot.join(each);
  };

  const draw = () => {
    plot?.destroy();
    zoomed = false;
    const seconds = over.value === "times";
    const ink = colour("--soft");
    const grid = { stroke: colour("--line"), width: 1 };
    const axis = { stroke: ink, grid, ticks: grid, font: "12px system-ui, sans-serif" };
    const options = {
      width: canvas.clientWidth || 600,
      height: HEIGHT,
      padding: [20, 16, 0, 0],
      scales: { x: { time: false, range: rangeOf } },
      axes: [
        {
          ...axis,
          ...(seconds ? { incrs: INCREMENTS, values: (_, ticks) => ticks.map(duration) } : {}),
        },
        { ...axis, size: 64, values: (_, ticks) => ticks.map(number) },
      ],
      series: [
        { label: seconds ? "time" : "step", value: (_, value) => (seconds ? duration(value) : number(value)) },
        ...runs.map((_, at) => ({
          label: `${letters[at]} ${curve.value}`.trim(),
          stroke: colour(COLOURS[at % COLOURS.length]),
          dash: dashOf(at),
          width: 2,
          // Of several runs in one chart the places of the other are no gaps: uPlot leaves them undefined.
          spanGaps: false,
          value: (chart, value) => number(value),
        })),
      ],
      hooks: {
        draw: [drawMarks],
        setSelect: [() => (zoomed = true)],
      },
    };
    plot = new uPlot(options, dataOf(), canvas);
    plot.over.addEventListener("dblclick", () => (zoomed = false));
    listMarks();
  };

  const problem = make("p", { class: "missing block", role: "status", id: "curves-problem" });
  const complain = (text) => {
    const heading = document.querySelector("#curves :is(summary, h2)");
    if (!text) problem.remove();
    else if (heading && !(problem.isConnected && problem.textContent === text)) {
      problem.textContent = text;
      heading.after(problem);
    }
  };

  const take = (answers) => {
    runs = answers;
    const section = document.getElementById("curves");
    if (!section || !runs.some((run) => run.curves.length)) return;
    if (!panel.isConnected) {
      keepPlace(() => {
        section.querySelector("summary, h2").after(panel);
        content.dataset.charts = "";
        offer();
        draw();
      });
    } else {
      offer();
      plot.setData(dataOf(), !zoomed);
      if (zoomed) plot.redraw();
      listMarks();
    }
  };

  const move = (event) => {
    if (plot === null) return;
    if (event.key === "Escape") {
      zoomed = false;
      plot.setData(plot.data);
      return;
    }
    const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (!step) return;
    event.preventDefault();
    const xs = plot.data[0];
    const at = Math.min(Math.max((plot.cursor.idx ?? -1) + step, 0), xs.length - 1);
    plot.setCursor({ left: plot.valToPos(xs[at], "x"), top: plot.over.clientHeight / 2 });
  };

  // A page that is open for hours may lose the server: what is drawn stays.
  const load = async () => {
    const mine = ++newest;
    clearTimeout(retry);
    try {
      const answers = await Promise.all(addresses.map(server.ask));
      if (mine !== newest) return;
      take(answers);
      complain("");
    } catch (error) {
      if (mine !== newest) return;
      complain(`The curves could not be loaded. ${server.explain(error)}`);
      retry = setTimeout(load, RETRY_MS);
    }
  };
  curve.addEventListener("change", draw);
  over.addEventListener("change", draw);
  canvas.addEventListener("keydown", move);
  controls.addEventListener("submit", (event) => event.preventDefault());
  new ResizeObserver(() => {
    if (plot !== null && canvas.clientWidth > 0 && plot.width !== canvas.clientWidth) {
      plot.setSize({ width: canvas.clientWidth, height: HEIGHT });
    }
  }).observe(canvas);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => plot && draw());
  document.addEventListener("shardline:changed", load);
  load();
})();
