"use strict";
// The data of the page: {unit, panels: [{kind, label, times, ...}]}. `packing.py` writes it.
const data = JSON.parse(document.getElementById("data").textContent);
const byId = (id) => document.getElementById(id);
const page = document.documentElement;

function make(tag, parent, text) {
  const made = parent.appendChild(document.createElement(tag));
  if (text) made.textContent = text;
  return made;
}

const shade = (name) => getComputedStyle(page).getPropertyValue(name).trim();

// ---- reading what was packed

function bytes(text) {
  const raw = atob(text), made = new Uint8Array(raw.length);
  for (let k = 0; k < raw.length; k++) made[k] = raw.charCodeAt(k);
  return made;
}

async function inflate(text) {
  const stream = new Blob([bytes(text)]).stream().pipeThrough(new DecompressionStream("deflate"));
  return new Uint8Array(await new Response(stream).arrayBuffer());
}

// Differences from frame to frame: all low bytes, then all high bytes.
async function numbers(text, size) {
  const raw = await inflate(text), count = raw.length / 2, made = new Int16Array(count);
  for (let k = 0; k < count; k++) {
    made[k] = (raw[k] | (raw[k + count] << 8)) + (k >= size ? made[k - size] : 0);
  }
  return made;
}

async function smallNumbers(text, size) {
  const made = await inflate(text);
  for (let k = size; k < made.length; k++) made[k] += made[k - size];
  return made;
}

function image(source) {
  return new Promise((done, fail) => {
    const made = new Image();
    made.onload = () => done(made);
    made.onerror = () => fail(new Error("this browser cannot show the format of the frames"));
    made.src = source;
  });
}

// ---- panels: each has `times` and `draw(k)`

async function framesPanel(given, canvas) {
  const images = await Promise.all(given.images.map((text) => image(given.head + text)));
  const context = canvas.getContext("2d");
  canvas.width = given.width;
  canvas.height = given.height;
  canvas.classList.toggle("small", given.width < 300);
  return (k) => context.drawImage(images[k], 0, 0);
}

async function shades(given, count) {
  const index = await smallNumbers(given.index, count);
  const colours = given.table.map((colour) => "#" + colour);
  return (k) => [index.subarray(given.moves ? k * count : 0, given.moves ? (k + 1) * count : count), colours];
}

// Calls `draw(item, colour)` for all items, those of one colour after each other.
function byColour(index, draw) {
  const rows = new Map();
  for (let k = 0; k < index.length; k++) {
    const row = rows.get(index[k]);
    if (row) row.push(k);
    else rows.set(index[k], [k]);
  }
  for (const [colour, row] of rows) draw(row, colour);
}

async function pointsPanel(given, canvas) {
  const {count, dimensions: d, low, high} = given;
  const places = await numbers(given.places, count * d);
  const colours = await shades(given.shades, count);
  const pairs = new Uint32Array(given.lines ? (await inflate(given.lines)).buffer : 0);
  const lineColours = pairs.length ? await shades(given.lineShades, pairs.length / 2) : null;
  const context = canvas.getContext("2d");
  const middle = low.map((value, a) => (value + high[a]) / 2);
  const half = low.map((value, a) => (high[a] - value) / 2);
  const radius = (k) => (given.radius.length ? given.radius[k] : given.radius);
  let view = given.view, shown = 0;
  const x = new Float32Array(count), y = new Float32Array(count), depth = new Float32Array(count);
  const known = new Uint8Array(count);

  function directions() {  // to the right, up, to the eye; see projection.py
    if (d === 2) return [[1, 0], [0, 1], [0, 0]];
    const [around, above] = view.map((angle) => (angle * Math.PI) / 180);
    const eye = [Math.cos(above) * Math.cos(around), Math.cos(above) * Math.sin(around), Math.sin(above)];
    const right = [-Math.sin(around), Math.cos(around), 0];
    const up = [0, 1, 2].map((a) => eye[(a + 1) % 3] * right[(a + 2) % 3] - eye[(a + 2) % 3] * right[(a + 1) % 3]);
    return [right, up, eye].map((row) => [0, 1, 2].map((a) => row[(a - given.up + 5) % 3]));
  }

  // What is seen, for every view: of three dimensions the sphere around the box.
  const reach = d === 2 ? half : [Math.hypot(...half), Math.hypot(...half)];
  const aspect = reach[1] / reach[0];

  function resize() {
    // A tall picture is no higher than the style sheet lets it be, and then less wide.
    const dot = window.devicePixelRatio || 1, highest = 0.72 * window.innerHeight;
    const width = Math.min(canvas.clientWidth || 600, highest / aspect);
    canvas.width = Math.max(40, Math.round(width * dot));
    canvas.height = Math.max(40, Math.round(width * aspect * dot));
  }

  function project(frame, rows, scale) {
    const at = frame * count * d;
    for (let k = 0; k < count; k++) {
      const sum = [0, 0, 0];
      known[k] = 1;
      for (let a = 0; a < d; a++) {
        const raw = places[at + k * d + a];
        if (raw === 32767) known[k] = 0;
        const value = (raw / given.levels) * 2 * half[a] - half[a];
        for (let row = 0; row < 3; row++) sum[row] += rows[row][a] * value;
      }
      x[k] = canvas.width / 2 + scale * sum[0];
      y[k] = canvas.height / 2 - scale * sum[1];
      depth[k] = sum[2];
    }
  }

  function box(rows, scale) {
    context.strokeStyle = shade("--line");
    context.lineWidth = 1;
    context.beginPath();
    const flat = [...Array(8).keys()].map((corner) => [0, 1].map((row) =>
      rows[row].reduce((sum, part, a) => sum + part * (corner & (1 << a) ? half[a] : -half[a]), 0)));
    for (let corner = 0; corner < 8; corner++) {
      for (let a = 0; a < 3; a++) {
        if (corner & (1 << a)) continue;
        for (const [end, go] of [[corner, "moveTo"], [corner | (1 << a), "lineTo"]]) {
          context[go](canvas.width / 2 + scale * flat[end][0], canvas.height / 2 - scale * flat[end][1]);
        }
      }
    }
    context.stroke();
  }

  // Numbers along the edges, so that one sees where things are.
  function ruler(scale) {
    const dot = window.devicePixelRatio || 1;
    context.font = `${10 * dot}px system-ui, sans-serif`;
    context.fillStyle = shade("--faint");
    context.strokeStyle = shade("--line");
    context.lineWidth = dot;
    context.beginPath();
    for (const axis of [0, 1]) {
      context.textAlign = axis ? "left" : "center";
      context.textBaseline = axis ? "middle" : "bottom";
      for (const value of ticks(low[axis], high[axis], false)) {
        const at = (value - middle[axis]) * scale;
        const place = axis ? canvas.height / 2 - at : canvas.width / 2 + at;
        const end = axis ? canvas.height : canvas.width;
        if (place < 0.04 * end || place > 0.96 * end) continue;
        if (axis) { context.moveTo(0, place); context.lineTo(4 * dot, place); }
        else { context.moveTo(place, canvas.height); context.lineTo(place, canvas.height - 4 * dot); }
        if (axis) context.fillText(short(value), 6 * dot, place);
        else context.fillText(short(value), place, canvas.height - 5 * dot);
      }
    }
    context.stroke();
  }

  function drawLines(frame) {
    const [index, names] = lineColours(frame);
    context.lineWidth = Math.max(1.5, canvas.width / 280);
    context.lineCap = "round";
    byColour(index, (row, colour) => {
      context.strokeStyle = names[colour];
      context.beginPath();
      for (const k of row) {
        const a = pairs[2 * k], b = pairs[2 * k + 1];
        if (!known[a] || !known[b]) continue;
        context.moveTo(x[a], y[a]);
        context.lineTo(x[b], y[b]);
      }
      context.stroke();
    });
  }

  function drawRow(row, colour, scale) {
    context.fillStyle = colour;
    context.beginPath();
    for (const k of row) {
      if (!known[k] || radius(k) === 0) continue;
      const r = Math.max(0.8, radius(k) * scale);
      if (r < 1.6) context.rect(x[k] - r, y[k] - r, 2 * r, 2 * r);
      else {
        context.moveTo(x[k] + r, y[k]);
        context.arc(x[k], y[k], r, 0, 6.2832);
      }
    }
    context.fill();
  }

  function draw(frame) {
    shown = frame;
    const scale = canvas.width / (2 * reach[0]), rows = directions();
    context.clearRect(0, 0, canvas.width, canvas.height);
    if (d === 3) box(rows, scale);
    else ruler(scale);
    project(frame, rows, scale);
    if (lineColours) drawLines(frame);
    const [index, names] = colours(frame);
    if (d === 2) byColour(index, (row, colour) => drawRow(row, names[colour], scale));
    else for (const k of [...Array(count).keys()].sort((a, b) => depth[a] - depth[b])) drawRow([k], names[index[k]], scale);
  }

  if (d === 3) turnable(canvas, (dx, dy) => {
    view = [view[0] - dx / 2, Math.max(-90, Math.min(90, view[1] + dy / 2))];
    draw(shown);
  });
  resize();
  new ResizeObserver(() => { resize(); draw(shown); }).observe(canvas);
  return draw;
}

function turnable(canvas, turn) {
  canvas.classList.add("turns");
  canvas.title = "drag to turn it";
  let last = null;
  canvas.addEventListener("pointerdown", (event) => {
    last = [event.clientX, event.clientY];
    canvas.setPointerCapture(event.pointerId);
  });
  canvas.addEventListener("pointermove", (event) => {
    if (!last) return;
    turn(event.clientX - last[0], event.clientY - last[1]);
    last = [event.clientX, event.clientY];
  });
  canvas.addEventListener("pointerup", () => (last = null));
}

// ---- the curve of the loss

function curve(given, canvas) {
  const {at, losses} = given, context = canvas.getContext("2d");
  const to = given.log ? Math.log10 : (value) => value;
  const finite = losses.filter((value) => value !== null);
  let low = to(Math.min(...finite)), high = to(Math.max(...finite));
  if (!(high > low)) [low, high] = [low - 0.5, low + 0.5];
  const last = Math.max(at[at.length - 1], 2);
  const best = [];
  for (const value of losses) best.push(Math.min(value ?? Infinity, best.length ? best[best.length - 1] : Infinity));

  function draw(near) {
    const dot = window.devicePixelRatio || 1, width = canvas.clientWidth || 400, height = Math.round(width * 0.6);
    canvas.width = width * dot;
    canvas.height = height * dot;
    context.setTransform(dot, 0, 0, dot, 0, 0);
    const left = 58, bottom = height - 34, top = 12, right = width - 12;
    const px = (iteration) => left + ((right - left) * (iteration - 1)) / (last - 1);
    const py = (value) => bottom - ((bottom - top) * (to(value) - low)) / (high - low);
    context.font = "12px system-ui, sans-serif";
    context.lineWidth = 1;
    context.strokeStyle = shade("--line");
    context.fillStyle = shade("--faint");
    context.textAlign = "right";
    context.textBaseline = "middle";
    for (const value of ticks(low, high, given.log)) {
      const y = py(value);
      context.beginPath();
      context.moveTo(left, y);
      context.lineTo(right, y);
      context.stroke();
      context.fillText(short(value), left - 6, y);
    }
    context.textAlign = "center";
    context.textBaseline = "top";
    for (const iteration of ticks(1, last, false)) {
      if (Number.isInteger(iteration)) context.fillText(iteration, px(iteration), bottom + 5);
    }
    context.fillText("iteration", (left + right) / 2, bottom + 19);
    line(losses, shade("--faint"), 1);
    line(best, shade("--accent"), 2);
    if (near !== null) {
      context.fillStyle = shade("--ink");
      context.beginPath();
      context.arc(px(at[near]), py(losses[near] ?? best[near]), 4, 0, 6.2832);
      context.fill();
    }

    function line(values, colour, size) {
      context.strokeStyle = context.fillStyle = colour;
      context.lineWidth = size;
      context.beginPath();
      const seen = (k) => Number.isFinite(values[k] ?? NaN);
      values.forEach((value, k) => {
        if (!seen(k)) return;
        if (seen(k - 1)) context.lineTo(px(at[k]), py(value));
        else context.moveTo(px(at[k]), py(value));
        // One point alone makes no line.
        if (!seen(k - 1) && !seen(k + 1)) context.fillRect(px(at[k]) - 2 * size, py(value) - 2 * size, 4 * size, 4 * size);
      });
      context.stroke();
    }
  }

  const caption = canvas.previousSibling, label = caption.textContent;
  canvas.addEventListener("pointermove", (event) => {
    const share = (event.offsetX - 58) / Math.max(1, canvas.clientWidth - 70);
    const wanted = 1 + share * (last - 1);
    let near = 0;
    at.forEach((iteration, k) => { if (Math.abs(iteration - wanted) < Math.abs(at[near] - wanted)) near = k; });
    caption.textContent = `${label}: ${losses[near] === null ? "NaN" : short(losses[near])} after ${at[near]}`;
    draw(near);
  });
  canvas.addEventListener("pointerleave", () => { caption.textContent = label; draw(null); });
  new ResizeObserver(() => draw(null)).observe(canvas);
  draw(null);
}

const short = (value) => (value !== 0 && (Math.abs(value) < 1e-3 || Math.abs(value) >= 1e5)
  ? value.toExponential(1).replace(".0e", "e") : String(Number(value.toPrecision(3))));

function ticks(low, high, log) {
  const made = [];
  if (log) {
    const step = Math.max(1, Math.ceil((high - low) / 5));
    for (let k = Math.ceil(low); k <= high; k += step) made.push(10 ** k);
    if (made.length > 1) return made;
    return [10 ** low, 10 ** ((low + high) / 2), 10 ** high];
  }
  const raw = (high - low) / 4, power = 10 ** Math.floor(Math.log10(raw));
  const step = power * ([1, 2, 5].find((part) => part * power >= raw) || 10);
  for (let k = Math.ceil(low / step); k * step <= high * (1 + 1e-9); k++) made.push(k * step);
  return made;
}

// ---- the clock

function player(panels) {
  const duration = Math.max(...panels.map((panel) => panel.times[panel.times.length - 1]));
  const most = Math.max(...panels.map((panel) => panel.times.length));
  const finest = panels.reduce((one, other) => (other.times.length > one.times.length ? other : one));
  const between = duration / Math.max(1, most - 1);
  const digits = Math.max(0, Math.min(9, Math.ceil(-Math.log10(Math.max(between, 1e-9)) - 1e-6)));
  // At the speed of life, if that is neither too fast nor too slow to look at.
  const seconds = Math.min(Math.max(Math.min(duration, 12), 3), 0.4 * most);
  const pace = duration / seconds;
  const icons = {true: "M6 5h4v14H6zM14 5h4v14h-4z", false: "M8 5v14l11-7z"};
  let t = 0, playing = false, before = 0, drawn = 0;

  function frameOf(panel) {
    let low = 0, high = panel.times.length - 1;
    while (low < high) {
      const middle = (low + high + 1) >> 1;
      if (panel.times[middle] <= t + 1e-9 * duration) low = middle;
      else high = middle - 1;
    }
    return low;
  }

  function show() {
    for (const panel of panels) {
      const frame = frameOf(panel);
      if (frame !== panel.shown) { panel.shown = frame; panel.draw(frame); drawn++; }
    }
    byId("time").textContent = `${finest.times[frameOf(finest)].toFixed(digits)} ${data.unit}`;
    byId("place").value = duration ? (1000 * Math.min(t, duration)) / duration : 0;
    page.dataset.drawn = drawn;
  }

  function set(value) {
    playing = value;
    page.dataset.state = playing ? "playing" : "paused";
    byId("play").innerHTML = `<svg viewBox="0 0 24 24"><path d="${icons[playing]}"/></svg>`;
    before = performance.now();
    if (playing) requestAnimationFrame(tick);
  }

  function tick(now) {
    if (!playing) return;
    t += ((Math.max(0, now - before)) / 1000) * pace * Number(byId("speed").value);
    before = now;
    if (t > duration + 0.8 * pace) t = 0;  // the last frame stays for a while
    show();
    requestAnimationFrame(tick);
  }

  function step(by) {
    set(false);
    t = finest.times[Math.max(0, Math.min(finest.times.length - 1, frameOf(finest) + by))];
    show();
  }

  function faster(by) {
    const choices = byId("speed");
    choices.selectedIndex = Math.max(0, Math.min(choices.length - 1, choices.selectedIndex + by));
  }

  const keys = {
    " ": () => set(!playing), ArrowLeft: () => step(-1), ArrowRight: () => step(1), "+": () => faster(1), "-": () => faster(-1),
    Home: () => { t = 0; show(); }, End: () => { set(false); t = duration; show(); },
  };
  byId("play").addEventListener("click", () => set(!playing));
  byId("place").addEventListener("input", (event) => { set(false); t = (event.target.value / 1000) * duration; show(); });
  document.addEventListener("keydown", (event) => {
    if (!keys[event.key] || event.ctrlKey || event.metaKey || event.altKey || event.target.tagName === "SELECT") return;
    event.preventDefault();
    keys[event.key]();
  });
  byId("controls").hidden = false;
  show();
  if (pace < 0.67 || pace > 1.5) make("p", byId("notes"), `1×: one second here is ${short(pace)} ${data.unit}.`);
  set(!matchMedia("(prefers-reduced-motion: reduce)").matches);
}

function addScale(figure, given) {
  const scale = make("div", figure);
  scale.className = "scale";
  make("span", scale, short(given.low));
  make("i", scale).style.background = `linear-gradient(to right, ${given.stops.map((stop) => "#" + stop).join()})`;
  make("span", scale, short(given.high));
}

async function start() {
  const makers = {frames: framesPanel, points: pointsPanel}, made = [];
  for (const given of data.panels) {
    const figure = make("figure", byId("panels"));
    make("figcaption", figure, given.label || "\u00a0");
    const canvas = make("canvas", figure);
    if (given.kind === "curve") curve(given, canvas);
    else made.push({times: given.times, shown: -1, draw: await makers[given.kind](given, canvas)});
    if (given.scale) addScale(figure, given.scale);
  }
  if (made.length) player(made);
  else page.dataset.state = "ready";
}

start().catch((problem) => {
  const text = typeof DecompressionStream === "undefined" ? "it needs a browser of 2023 or newer" : problem.message;
  byId("problem").textContent = `This page cannot be shown: ${text}.`;
  byId("problem").hidden = false;
  page.dataset.state = "failed";
});
