"use strict";
// The timeline: draws the marks that timeline.py computed, and lets the reader move through them.
// Times are nanoseconds since the first event of the profile; they stay exact, for all are below 2^53.
(() => {
  const AXIS = 22, STEPS = 15, MAP = 30, GAP = 6;
  const HEIGHTS = { idle: 28, stream: 20, ranges: 16, python: 15, calls: 16, os: 13, profiler: 13 };
  const NARROWEST = 20; // nanoseconds across the screen

  // --- reading -----------------------------------------------------------------------------------------------------------
  const unpack = async (text) => {
    const bytes = new Uint8Array(await (await warplens.unpack(text)).arrayBuffer());
    const length = new DataView(bytes.buffer).getUint32(0, true);
    const head = JSON.parse(new TextDecoder().decode(bytes.subarray(4, 4 + length)));
    let at = 4 + length;
    let column = 0;
    const read = (count) => {
      const width = head.widths[column++];
      const values = width > 4 ? new Float64Array(count) : new Uint32Array(count);
      for (let plane = 0, unit = 1; plane < width; plane++, unit *= 256, at += count) {
        for (let i = 0; i < count; i++) values[i] += bytes[at + i] * unit;
      }
      return values;
    };
    for (const level of head.levels) {
      const count = level.rows.reduce((sum, each) => sum + each, 0);
      level.begin = [0];
      for (const each of level.rows) level.begin.push(level.begin.at(-1) + each);
      const steps = read(count);
      Object.assign(level, { extent: read(count), name: read(count), more: read(count), busy: read(count) });
      level.parts = head.causes.map(() => read(level.idle));
      level.start = new Float64Array(count);
      for (let row = 0; row < level.rows.length; row++) {
        for (let i = level.begin[row], now = 0; i < level.begin[row + 1]; i++) level.start[i] = now += steps[i];
      }
    }
    const finest = head.levels[0].start.length;
    head.ago = read(finest); // 1 more than the time since the launching call began; 0 where it is not known
    head.callsRow = read(finest);
    head.where = read(finest);
    head.bytes = read(finest);
    return head;
  };

  // --- words -------------------------------------------------------------------------------------------------------------
  const { element, count, duration, bytes, exact, time: both } = warplens;

  // The first mark of a row that ends after a time. Marks of a row are disjoint, so that their ends are in order, too.
  const firstAfter = (level, row, time) => {
    let low = level.begin[row], high = level.begin[row + 1];
    while (low < high) {
      const middle = (low + high) >> 1;
      if (level.start[middle] + level.extent[middle] > time) high = middle;
      else low = middle + 1;
    }
    return low;
  };

  // --- one timeline --------------------------------------------------------------------------------------------------------
  const start = async (figure) => {
    figure.dataset.state = "reading";
    const data = await unpack(JSON.parse(document.getElementById(`${figure.id}-data`).textContent));
    const stage = figure.querySelector(".stage");
    const alt = stage.dataset.alt;
    const canvas = element("canvas", { "aria-hidden": "true" });
    const labels = element("div", { class: "labels" });
    const tip = element("div", { class: "tip", hidden: "" });
    const plot = element("div", { class: "plot", tabindex: "0", role: "application", "aria-roledescription": "timeline", "aria-label": alt });
    const said = element("p", { class: "said", "aria-live": "polite" });
    const find = element("input", { type: "search", placeholder: "Search names ( / )", "aria-label": "Search names in the timeline", spellcheck: "false", autocomplete: "off" });
    const found = element("span", { class: "found", "aria-live": "polite" });
    const bar = element("div", { class: "tools" }, find, found);
    const legend = element("ul", { class: "legend" });
    plot.append(canvas, labels, tip);
    stage.replaceChildren(bar, plot, said, legend);
    const context = canvas.getContext("2d");

    const seen = { from: data.opens[0], to: data.opens[1] };
    let colours = [], inks = [], paper = {};
    let width = 0, height = 0, gutter = 0, lines = [];
    let hits = [], hit = -1, wanted = null;
    let chosen = null, hovered = null, measured = null, pointed = null;
    let linked = null;
    let map = null;
    let due = false;

    // --- layout: a line for each row that is shown ---
    const shown = new Map(data.tracks.map((track) => [track, track.peek]));
    const whole = new Set(); // groups whose minor tracks are shown, too
    const arrange = () => {
      width = plot.clientWidth;
      gutter = width > 640 ? 178 : 0;
      lines = [];
      labels.replaceChildren();
      let y = MAP + AXIS + STEPS + 2;
      let group = null;
      const isIn = (track) => !track.minor || whole.has(track.group);
      data.tracks.forEach((track, number) => {
        if (track.group !== group) {
          group = track.group;
          y += GAP;
          labels.append(label("div", "group", y, group));
          y += 18;
        }
        if (isIn(track)) y = arrangeTrack(track, y);
        const minor = data.tracks.filter((each) => each.group === group && each.minor).length;
        if (minor && data.tracks[number + 1]?.group !== group) {
          const open = whole.has(group);
          const of = group;
          const toggle = button(y + 2, open, open ? "fewer tracks" : `${minor} more ${minor === 1 ? "track" : "tracks"}`, () => {
            if (open) whole.delete(of);
            else whole.add(of);
          });
          labels.append(toggle);
          y += 20;
        }
      });
      height = y + 4;
      const scale = devicePixelRatio || 1;
      canvas.width = Math.round(width * scale);
      canvas.height = Math.round(height * scale);
      canvas.style.height = plot.style.height = `${height}px`;
      context.setTransform(scale, 0, 0, scale, 0, 0);
      map = null;
      redraw();
    };
    const arrangeTrack = (track, begin) => {
      let y = begin;
      const rows = shown.get(track);
      const top = gutter ? y : (y += 14) && y - 14;
      if (track.rows > track.peek) {
        const open = rows === track.rows;
        labels.append(button(top, open, track.label, () => shown.set(track, open ? track.peek : track.rows)));
      } else labels.append(label("div", "track", top, track.label));
      for (let row = 0; row < rows; row++) {
        lines.push({ track, row: track.first + row, y, height: HEIGHTS[track.kind] });
        y += HEIGHTS[track.kind] + 1;
      }
      return y + (track.kind === "stream" || track.kind === "idle" ? 2 : 3);
    };
    const button = (y, open, text, act) => {
      const made = label("button", "track", y, `${open ? "▾" : "▸"} ${text}`);
      made.type = "button";
      made.setAttribute("aria-expanded", String(open));
      made.addEventListener("click", () => { act(); arrange(); });
      return made;
    };
    const label = (tag, kind, y, text) => {
      const made = element(tag, { class: kind, title: text }, text);
      made.style.top = `${y}px`;
      return made;
    };

    // --- colours: those of the page's theme ---
    const colour = () => {
      const style = getComputedStyle(figure);
      const value = (token) => style.getPropertyValue(`--${token}`).trim();
      paper = Object.fromEntries(["ink", "soft", "line", "strong-line", "track", "surface", "accent", "accent-soft", "page"].map((token) => [token, value(token)]));
      colours = data.fills.map(value);
      inks = colours.map((hex) => {
        const [red, green, blue] = [1, 3, 5].map((place) => (parseInt(hex.slice(place, place + 2), 16) / 255) ** 2.2);
        return 0.2126 * red + 0.7152 * green + 0.0722 * blue > 0.2 ? "#111417" : "#ffffff";
      });
      map = null;
      const causes = data.causes.map(([title, fill, meaning], number) => [title, fill, meaning, data.levels.at(-1).parts[number].some((part) => part > 0)]);
      const entry = (text, fill, meaning) => {
        const swatch = element("i");
        swatch.style.background = colours[fill];
        return element("li", { title: meaning }, swatch, text);
      };
      legend.replaceChildren(
        ...causes.filter((each) => each[3]).map(([title, fill, meaning]) => entry(`idle: ${title}`, fill, meaning)),
        ...data.kinds.map(([title, fill]) => entry(title, fill, "GPU work")),
      );
      redraw();
    };

    // --- drawing ---
    const plotWidth = () => width - gutter;
    const scaleOf = () => plotWidth() / (seen.to - seen.from); // pixels a nanosecond
    const xOf = (time) => gutter + (time - seen.from) * scaleOf();
    const timeAt = (x) => seen.from + (x - gutter) / scaleOf();
    const levelFor = (nsPerPixel) => {
      let best = data.levels[0];
      for (const level of data.levels) if (level.width <= nsPerPixel) best = level;
      return best;
    };
    const redraw = () => {
      if (due) return;
      due = true;
      requestAnimationFrame(() => { due = false; draw(); });
    };

    const draw = () => {
      const began = performance.now();
      const level = levelFor(1 / scaleOf());
      context.clearRect(0, 0, width, height);
      drawMap();
      context.save();
      context.beginPath();
      context.rect(gutter, MAP, plotWidth(), height - MAP);
      context.clip();
      drawAxis();
      context.font = `11px ${getComputedStyle(plot).fontFamily}`;
      context.textBaseline = "middle";
      let marks = 0;
      for (const line of lines) marks += line.track.kind === "idle" ? drawIdle(level, line) : drawRow(level, line);
      drawOutside();
      drawMoments();
      drawChosen(level);
      drawMeasure();
      context.restore();
      figure.dataset.shown = `${Math.round(seen.from)}-${Math.round(seen.to)}`;
      figure.dataset.frame = `${(performance.now() - began).toFixed(2)} ms, ${marks} marks`;
    };

    const drawRow = (level, line) => {
      const { start: starts, extent, name, more, busy } = level;
      const scale = scaleOf(), end = level.begin[line.row + 1];
      const muted = ["ranges", "python", "os"].includes(line.track.kind);
      let drawn = 0, painted = -1, ink = -1, alpha = -1;
      for (let i = firstAfter(level, line.row, seen.from); i < end && starts[i] < seen.to; i++) {
        const left = gutter + (starts[i] - seen.from) * scale;
        const right = left + extent[i] * scale;
        if (right <= painted && !wanted) continue; // another mark stands on these pixels
        const from = Math.max(left, gutter - 2), to = Math.min(Math.max(right, left + 1), width + 2);
        painted = to;
        drawn += 1;
        const fill = data.names[name[i]][1];
        const other = wanted !== null && !wanted.has(name[i]);
        const dense = more[i] ? busy[i] / extent[i] : 1;
        // The state of the canvas is set where it changes only: that costs more than the mark itself.
        const strength = (muted ? 0.34 : 1) * (other ? 0.2 : 1) * (more[i] ? 0.4 + 0.15 * Math.round(4 * dense) : 1);
        if (strength !== alpha) context.globalAlpha = alpha = strength;
        if (fill !== ink) context.fillStyle = colours[ink = fill];
        const space = to - from > 3 ? 0.6 : 0; // neighbours are told apart by a hair of the ground
        context.fillRect(from, line.y, to - from - space, line.height);
        if (to - from > 34 && line.height > 11) {
          context.globalAlpha = other ? 0.4 : 1;
          context.fillStyle = muted || more[i] ? paper.ink : inks[fill];
          ink = alpha = -1;
          const text = more[i] ? `${more[i] + 1} × … ${data.names[name[i]][0]}` : data.names[name[i]][0];
          context.fillText(cut(text, to - from - 8), from + 4, line.y + line.height / 2 + 0.5);
        }
      }
      context.globalAlpha = 1;
      return drawn;
    };
    const cut = (text, room) => {
      const most = Math.floor(room / 6.4);
      return text.length <= most ? text : most < 4 ? "" : `${text.slice(0, most - 1)}…`;
    };

    // Idle time: each pause is filled by its causes, one above the other, so that areas are times.
    const drawIdle = (level, line) => {
      const scale = scaleOf(), end = level.begin[line.row + 1], first = firstAfter(level, line.row, seen.from);
      context.fillStyle = paper.track;
      context.fillRect(gutter, line.y, plotWidth(), line.height);
      let last = first;
      while (last < end && level.start[last] < seen.to) last += 1;
      const left = (i) => Math.max(gutter + (level.start[i] - seen.from) * scale, gutter - 2);
      const right = (i) => Math.min(Math.max(gutter + (level.start[i] + level.extent[i] - seen.from) * scale, left(i) + 0.7), width + 2);
      const filled = new Float32Array(last - first);
      data.causes.forEach(([, fill], cause) => {
        const parts = level.parts[cause];
        context.fillStyle = colours[fill];
        for (let i = first; i < last; i++) {
          if (!parts[i]) continue;
          const tall = (line.height * parts[i]) / level.extent[i];
          filled[i - first] += tall;
          context.fillRect(left(i), line.y + line.height - filled[i - first], right(i) - left(i), tall);
        }
      });
      for (let i = first; i < last; i++) {
        if (level.more[i] || level.extent[i] * scale < 60 || right(i) - left(i) < 60) continue;
        const [text, fill] = data.names[level.name[i]];
        context.fillStyle = inks[fill];
        context.fillText(cut(text, right(i) - left(i) - 8), left(i) + 4, line.y + line.height / 2 + 0.5);
      }
      return last - first;
    };

    const drawAxis = () => {
      const span = seen.to - seen.from;
      const rough = span / Math.max(plotWidth() / 110, 1);
      const power = 10 ** Math.floor(Math.log10(rough));
      const step = Math.max(1, [1, 2, 5, 10].map((times) => times * power).find((each) => each >= rough));
      const [unit, sign] = step >= 1e8 ? [1e9, "s"] : step >= 1e5 ? [1e6, "ms"] : step >= 100 ? [1e3, "µs"] : [1, "ns"];
      const digits = Math.max(0, Math.ceil(-Math.log10(step / unit) - 1e-9));
      context.font = `11px ${getComputedStyle(plot).fontFamily}`;
      context.textBaseline = "middle";
      for (let tick = Math.ceil(seen.from / step) * step; tick <= seen.to; tick += step) {
        const x = xOf(tick);
        context.fillStyle = paper.line;
        context.fillRect(x, MAP + AXIS - 4, 1, height);
        context.fillStyle = paper.soft;
        context.fillText(`${(tick / unit).toLocaleString("en-US", { minimumFractionDigits: digits, maximumFractionDigits: digits })} ${sign}`, x + 3, MAP + 11);
      }
      for (const [from, to, number, counts] of data.steps) {
        if (to < seen.from || from > seen.to) continue;
        const left = Math.max(xOf(from), gutter), right = Math.min(xOf(to), width);
        context.fillStyle = counts ? (number % 2 ? paper.track : paper["accent-soft"]) : paper.page;
        context.fillRect(left, MAP + AXIS, right - left - 1, STEPS - 2);
        context.fillStyle = counts ? paper.ink : paper.soft;
        const text = cut(`step ${number}${counts ? "" : ", not counted"}`, right - left - 6);
        context.fillText(text, left + 4, MAP + AXIS + STEPS / 2 - 0.5);
      }
    };

    // What was not analysed is veiled: its pauses have no causes.
    const drawOutside = () => {
      context.globalAlpha = 0.5;
      context.fillStyle = paper.surface;
      const [from, to] = data.window.map(xOf);
      const top = MAP + AXIS + STEPS;
      if (from > gutter) context.fillRect(gutter, top, Math.min(from, width) - gutter, height);
      if (to < width) context.fillRect(Math.max(to, gutter), top, width, height);
      context.globalAlpha = 1;
    };

    const drawMoments = () => {
      data.moments.forEach(([from, to, _finding, row], number) => {
        if (to < seen.from || from > seen.to) return;
        const line = lines.find((each) => each.row === row);
        const left = xOf(from), right = Math.max(xOf(to), left + 2);
        context.strokeStyle = context.fillStyle = paper.accent;
        if (line) {
          context.lineWidth = 2;
          context.strokeRect(left, line.y - 1, right - left, line.height + 2);
        }
        const middle = Math.min(Math.max((left + right) / 2, gutter + 8), width - 8);
        context.beginPath();
        context.arc(middle, MAP + AXIS + STEPS / 2 - 1, 7, 0, 7);
        context.fill();
        context.fillStyle = paper.surface;
        context.textAlign = "center";
        context.fillText(String(number + 1), middle, MAP + AXIS + STEPS / 2 - 0.5);
        context.textAlign = "start";
      });
      if (linked) {
        context.strokeStyle = paper.accent;
        context.lineWidth = 1.5;
        context.setLineDash([4, 3]);
        for (const time of linked) {
          context.beginPath();
          context.moveTo(xOf(time), MAP + AXIS);
          context.lineTo(xOf(time), height);
          context.stroke();
        }
        context.setLineDash([]);
      }
    };

    const drawChosen = (level) => {
      for (const item of [hovered, chosen]) {
        if (!item || (item.level !== level && item === hovered)) continue;
        const line = lines.find((each) => each.row === item.row);
        if (!line) continue;
        const left = xOf(item.start);
        context.strokeStyle = paper.ink;
        context.lineWidth = item === chosen ? 2 : 1;
        context.strokeRect(left, line.y, Math.max(item.extent * scaleOf(), 2), line.height);
      }
      for (const [fromTime, fromRow, toTime, toRow] of arrows) {
        const from = lines.find((each) => each.row === fromRow), to = lines.find((each) => each.row === toRow);
        if (!from || !to) continue;
        const [x0, x1] = [xOf(fromTime), xOf(toTime)];
        const [y0, y1] = [from.y > to.y ? from.y : from.y + from.height, from.y > to.y ? to.y + to.height : to.y];
        const bend = Math.min(60, Math.abs(x1 - x0) / 2 + 10);
        context.strokeStyle = context.fillStyle = paper.ink;
        context.lineWidth = 1.4;
        context.beginPath();
        context.moveTo(x0, y0);
        context.bezierCurveTo(x0 + bend, y0, x1 - bend, y1, x1, y1);
        context.stroke();
        context.beginPath();
        context.moveTo(x1, y1);
        context.lineTo(x1 - 8, y1 - 3.5);
        context.lineTo(x1 - 8, y1 + 3.5);
        context.fill();
      }
    };

    const drawMeasure = () => {
      if (!measured) return;
      const [from, to] = [...measured].sort((a, b) => a - b);
      const left = xOf(from), right = xOf(to);
      context.fillStyle = paper.accent;
      context.globalAlpha = 0.14;
      context.fillRect(left, MAP + AXIS, right - left, height);
      context.globalAlpha = 1;
      context.fillRect(left, MAP + AXIS, 1, height);
      context.fillRect(right, MAP + AXIS, 1, height);
      const text = duration(to - from);
      const room = context.measureText(text).width + 10;
      const middle = Math.min(Math.max((left + right) / 2, gutter + room / 2), width - room / 2);
      context.fillRect(middle - room / 2, MAP + AXIS - 1, room, 17);
      context.fillStyle = paper.surface;
      context.textAlign = "center";
      context.fillText(text, middle, MAP + AXIS + 8);
      context.textAlign = "start";
    };

    // The strip on top: the whole profile, and which part of it is shown.
    const drawMap = () => {
      const inner = plotWidth();
      if (!map) {
        map = new OffscreenCanvas(Math.max(1, Math.round(inner)), MAP - 8);
        const strip = map.getContext("2d");
        const level = levelFor(data.end / inner);
        const streams = data.tracks.filter((track) => track.kind === "stream" || track.kind === "idle");
        const idles = streams.filter((track) => track.kind === "idle");
        strip.fillStyle = paper.track;
        strip.fillRect(0, 0, inner, MAP);
        for (const track of streams.filter((each) => each.kind === "stream")) {
          for (let row = track.first; row < track.first + track.rows; row++) {
            for (let i = level.begin[row]; i < level.begin[row + 1]; i++) {
              strip.fillStyle = colours[data.names[level.name[i]][1]];
              strip.globalAlpha = level.more[i] ? 0.3 + 0.7 * (level.busy[i] / level.extent[i]) : 1;
              strip.fillRect((level.start[i] / data.end) * inner, 0, Math.max((level.extent[i] / data.end) * inner, 0.6), (MAP - 8) / 2);
            }
          }
        }
        strip.globalAlpha = 1;
        for (const track of idles) {
          for (let i = level.begin[track.first]; i < level.begin[track.first + 1]; i++) {
            let y = MAP - 8;
            for (let cause = 0; cause < data.causes.length; cause++) {
              const tall = (((MAP - 8) / 2) * level.parts[cause][i]) / level.extent[i] / idles.length;
              if (!tall) continue;
              strip.fillStyle = colours[data.causes[cause][1]];
              strip.fillRect((level.start[i] / data.end) * inner, y - tall, Math.max((level.extent[i] / data.end) * inner, 0.6), tall);
              y -= tall;
            }
          }
        }
      }
      context.drawImage(map, gutter, 2);
      const left = gutter + (seen.from / data.end) * inner, right = gutter + (seen.to / data.end) * inner;
      context.globalAlpha = 0.62;
      context.fillStyle = paper.surface;
      context.fillRect(gutter, 2, left - gutter, MAP - 8);
      context.fillRect(right, 2, width - right, MAP - 8);
      context.globalAlpha = 1;
      context.strokeStyle = paper.accent;
      context.lineWidth = 1.5;
      context.strokeRect(Math.max(left, gutter + 1), 2, Math.max(right - left, 3) - 1, MAP - 8);
    };

    // --- moving ---
    const show = (from, to) => {
      const least = NARROWEST, most = data.end * 1.04;
      const span = Math.min(Math.max(to - from, least), most);
      const middle = (from + to) / 2;
      const slack = 0.02 * data.end;
      seen.from = Math.min(Math.max(middle - span / 2, -slack), data.end + slack - span);
      seen.to = seen.from + span;
      redraw();
    };
    const zoom = (factor, at = (seen.from + seen.to) / 2) => show(at - (at - seen.from) * factor, at + (seen.to - at) * factor);
    const pan = (part) => show(seen.from + part * (seen.to - seen.from), seen.to + part * (seen.to - seen.from));
    const frame = (from, to, margin = 0.25) => show(from - margin * (to - from), to + margin * (to - from));
    const centre = () => (pointed === null ? (seen.from + seen.to) / 2 : timeAt(pointed));

    // --- what stands at a place ---
    const at = (x, y) => {
      const line = lines.find((each) => y >= each.y && y < each.y + each.height);
      if (!line || x < gutter) return null;
      const level = levelFor(1 / scaleOf());
      const near = 3 / scaleOf(), time = timeAt(x);
      const end = level.begin[line.row + 1];
      let best = -1, least = Infinity;
      for (let i = firstAfter(level, line.row, time - near); i < end && level.start[i] <= time + near; i++) {
        const away = Math.max(level.start[i] - time, time - level.start[i] - level.extent[i], 0);
        if (away < least) [best, least] = [i, away];
      }
      return best < 0 ? null : item(level, line.row, best);
    };
    const item = (level, row, index) => ({ level, row, index, start: level.start[index], extent: level.extent[index] });
    const trackOf = (row) => data.tracks.find((track) => row >= track.first && row < track.first + track.rows);

    // The facts on a mark: what heads them, and pairs of a word and a value.
    const facts = ({ level, row, index }) => {
      const track = trackOf(row);
      const [name, , full] = data.names[level.name[index]];
      const pairs = [];
      const single = !level.more[index];
      pairs.push(["starts at", both(level.start[index])]);
      pairs.push([single ? "takes" : "spans", both(level.extent[index])]);
      if (!single) {
        const what = track.kind === "idle" ? "pauses" : "events";
        pairs.push([what, count(level.more[index] + 1)], ["their sum", both(level.busy[index])]);
      }
      if (track.kind === "idle") {
        data.causes.forEach(([title], cause) => {
          if (level.parts[cause][index]) pairs.push([title, both(level.parts[cause][index])]);
        });
      }
      if (level === data.levels[0] && single) {
        if (data.ago[index]) pairs.push(["launched", `${both(data.ago[index] - 1)} earlier`]);
        if (data.where[index]) pairs.push(["inside", data.names[data.where[index] - 1][0]]);
        if (data.bytes[index]) pairs.push(["moves", bytes(data.bytes[index])]);
      }
      pairs.push(["on", `${track.group}, ${track.label}`]);
      const title = single ? full ?? name : `${level.more[index] + 1} together, the longest: ${name}`;
      return { title, pairs };
    };

    // Arrows: from the launching call to the work, or from a call to all work that it launched.
    let arrows = [];
    const choose = (what) => {
      chosen = what;
      arrows = [];
      if (!what) { said.textContent = ""; redraw(); return; }
      const { title, pairs } = facts(what);
      const track = trackOf(what.row);
      if (what.level === data.levels[0] && !what.level.more[what.index]) {
        const { index, start: when } = what;
        if (data.ago[index] && data.callsRow[index]) arrows.push([when - data.ago[index] + 1, data.callsRow[index] - 1, when, what.row]);
        if (track.kind === "calls") {
          const finest = data.levels[0];
          for (let i = 0; i < data.ago.length && arrows.length < 200; i++) {
            if (data.callsRow[i] - 1 === what.row && finest.start[i] - data.ago[i] + 1 === when) arrows.push([when, what.row, finest.start[i], rowOf(finest, i)]);
          }
          if (arrows.length) pairs.push(["launched work", String(arrows.length)]);
        }
      }
      said.textContent = `${title}: ${pairs.map(([word, value]) => `${word} ${value}`).join(", ")}.`;
      redraw();
    };
    const rowOf = (level, index) => {
      let low = 0, high = level.rows.length - 1;
      while (low < high) {
        const middle = (low + high + 1) >> 1;
        if (level.begin[middle] <= index) low = middle;
        else high = middle - 1;
      }
      return low;
    };
    const neighbour = (step) => {
      const level = levelFor(1 / scaleOf());
      const row = chosen?.row ?? lines[0].row;
      const now = chosen ? chosen.start + chosen.extent / 2 : (seen.from + seen.to) / 2;
      let index = firstAfter(level, row, now);
      if (chosen) index += step;
      index = Math.min(Math.max(index, level.begin[row]), level.begin[row + 1] - 1);
      if (index < level.begin[row]) return;
      reveal(item(level, row, index));
    };
    const reveal = (what) => {
      const end = what.start + what.extent;
      if (what.start < seen.from || end > seen.to) show((what.start + end - seen.to + seen.from) / 2, (what.start + end + seen.to - seen.from) / 2);
      choose(what);
    };

    // --- search ---
    const search = () => {
      const text = find.value.trim().toLowerCase();
      hits = [];
      hit = -1;
      wanted = null;
      if (text) {
        wanted = new Set(data.names.flatMap(([name, , full], number) => ((full ?? name).toLowerCase().includes(text) || name.toLowerCase().includes(text) ? [number] : [])));
        const finest = data.levels[0];
        for (let i = 0; i < finest.name.length; i++) if (wanted.has(finest.name[i])) hits.push(i);
        hits.sort((a, b) => finest.start[a] - finest.start[b]);
      }
      found.textContent = text ? (hits.length ? `${count(hits.length)} found` : "none found") : "";
      redraw();
    };
    const turn = (step) => {
      if (!hits.length) return;
      const finest = data.levels[0];
      if (hit < 0) hit = Math.max(hits.findIndex((i) => finest.start[i] >= seen.from), 0) - (step > 0 ? 1 : 0);
      hit = (hit + step + hits.length) % hits.length;
      const row = rowOf(finest, hits[hit]);
      const track = trackOf(row);
      if (track.minor || row - track.first >= shown.get(track)) {
        if (track.minor) whole.add(track.group);
        if (row - track.first >= shown.get(track)) shown.set(track, track.rows);
        arrange();
      }
      const what = item(finest, row, hits[hit]);
      if (what.extent * scaleOf() < 6) frame(what.start, what.start + Math.max(what.extent, 50), 15);
      reveal(what);
      found.textContent = `${count(hit + 1)} of ${count(hits.length)}`;
    };
    find.addEventListener("input", search);
    find.addEventListener("keydown", (event) => {
      if (event.key === "Enter") { event.preventDefault(); turn(event.shiftKey ? -1 : 1); }
      if (event.key === "Escape") { find.value = ""; search(); plot.focus({ preventScroll: true }); }
    });

    // --- buttons ---
    const tool = (text, title, act) => {
      const button = element("button", { type: "button", class: "quiet", title }, text);
      button.addEventListener("click", act);
      bar.append(button);
    };
    tool("−", "Zoom out (S)", () => zoom(2));
    tool("+", "Zoom in (W)", () => zoom(0.5));
    tool("Step", "The step it opens on", () => { linked = null; show(...data.opens); });
    tool("Window", "All that was analysed (0)", () => { linked = null; show(...data.window); });
    tool("All", "All that was recorded", () => { linked = null; show(0, data.end); });

    // The span that is measured, or shown, as a trace of its own: the finest marks, with the numbers of this timeline.
    const perfetto = () => {
      const [from, to] = measured ? [...measured].sort((a, b) => a - b) : [Math.max(0, seen.from), Math.min(seen.to, data.end)];
      const finest = data.levels[0], events = [];
      const groups = [...new Set(data.tracks.map((track) => track.group))];
      const named = (name, pid, tid, text) => events.push({ ph: "M", name, pid, ...(tid === null ? {} : { tid }), args: { name: text } });
      groups.forEach((group, number) => named("process_name", number + 1, null, group));
      let saved = 0;
      for (const track of data.tracks) {
        const pid = groups.indexOf(track.group) + 1;
        for (let row = track.first; row < track.first + track.rows; row++) {
          const tid = row + 1, before = events.length;
          for (let i = firstAfter(finest, row, from); i < finest.begin[row + 1] && finest.start[i] < to; i++) {
            const what = item(finest, row, i), { title, pairs } = facts(what);
            const args = { start_ns: what.start, duration_ns: what.extent, ...Object.fromEntries(pairs) };
            events.push({ ph: "X", name: title, cat: track.kind, pid, tid, ts: what.start / 1000, dur: what.extent / 1000, args });
            saved += 1;
            if (!data.ago[i] || !data.callsRow[i] || finest.more[i]) continue;
            const flow = { name: "launch", cat: "launch", id: saved };
            const calls = data.callsRow[i] - 1;
            events.push({ ...flow, ph: "s", pid: groups.indexOf(trackOf(calls).group) + 1, tid: calls + 1, ts: (what.start - data.ago[i] + 1) / 1000 });
            events.push({ ...flow, ph: "f", bp: "e", pid, tid, ts: what.start / 1000 });
          }
          if (events.length > before) named("thread_name", pid, tid, row > track.first ? `${track.label} (${row - track.first + 1})` : track.label);
        }
      }
      const link = element("a", { download: `${figure.dataset.anchor}-${Math.round(from)}-${Math.round(to)}.json` });
      link.href = URL.createObjectURL(new Blob([JSON.stringify({ displayTimeUnit: "ns", traceEvents: events })], { type: "application/json" }));
      link.click();
      setTimeout(() => URL.revokeObjectURL(link.href), 1000);
      said.textContent = `Saved ${count(saved)} events of ${duration(to - from)} as ${link.download}: open this file in Perfetto (ui.perfetto.dev).`;
    };
    tool("Perfetto", "Save the span that is measured, or shown, as a file for Perfetto", perfetto);
    bar.append(element("span", { class: "keys" }, "W S zoom · A D pan · wheel · shift-drag measures · drag on the strip selects"));

    // --- keys: a press moves at once, a held key goes on until it is released ---
    const SPEEDS = { w: ["zoom", -1], s: ["zoom", 1], a: ["pan", -1], d: ["pan", 1], arrowup: ["zoom", -1], arrowdown: ["zoom", 1], arrowleft: ["pan", -1], arrowright: ["pan", 1] };
    const held = new Map();
    let last = 0;
    const glide = (now) => {
      if (!held.size) return;
      const passed = Math.min((now - last) / 1000, 0.05);
      last = now;
      for (const [key, since] of held) {
        if (now - since < 180) continue;
        const [kind, sign] = SPEEDS[key];
        if (kind === "zoom") zoom(Math.exp(sign * 2.6 * passed), centre());
        else pan(sign * 0.9 * passed);
      }
      requestAnimationFrame(glide);
    };
    const letGo = () => held.clear();
    plot.addEventListener("keydown", (event) => {
      if (event.ctrlKey || event.metaKey || event.altKey) return;
      const key = event.key.toLowerCase();
      if (SPEEDS[key]) {
        if (!held.has(key)) {
          const [kind, sign] = SPEEDS[key];
          if (kind === "zoom") zoom(sign < 0 ? 0.7 : 1 / 0.7, centre());
          else pan(sign * 0.15);
          if (!held.size) { last = performance.now(); requestAnimationFrame(glide); }
          held.set(key, performance.now());
        }
      } else if (key === "+" || key === "=") zoom(0.5, centre());
      else if (key === "-") zoom(2, centre());
      else if (key === "0") show(...data.window);
      else if (key === "f" && (chosen || measured)) {
        const [from, to] = measured ? [...measured].sort((a, b) => a - b) : [chosen.start, chosen.start + chosen.extent];
        frame(from, to, 0.1);
      } else if (key === "." || key === ",") neighbour(key === "." ? 1 : -1);
      else if (key === "/") find.focus();
      else if (key === "escape") { measured = linked = null; choose(null); }
      else return;
      event.preventDefault();
    });
    plot.addEventListener("keyup", (event) => held.delete(event.key.toLowerCase()));
    plot.addEventListener("blur", letGo);
    addEventListener("blur", letGo);

    // --- mouse and touch ---
    const fingers = new Map();
    let grip = null;
    const place = (event) => {
      const box = canvas.getBoundingClientRect();
      return [event.clientX - box.left, event.clientY - box.top];
    };
    // On the strip a click goes there, what is shown can be dragged along, and a drag beside it selects a span.
    const mapTime = (x) => ((Math.min(Math.max(x, gutter), width) - gutter) / plotWidth()) * data.end;
    const toMap = (x) => {
      const half = (seen.to - seen.from) / 2;
      show(mapTime(x) - half, mapTime(x) + half);
    };
    const moveOnMap = (x) => {
      if (Math.abs(x - grip.x) > 3) grip.moved = true;
      if (!grip.moved) return;
      const from = mapTime(grip.x), to = mapTime(x);
      if (grip.inside) show(grip.from + to - from, grip.to + to - from);
      else show(Math.min(from, to), Math.max(from, to));
    };
    canvas.addEventListener("pointerdown", (event) => {
      if (event.button) return;
      const [x, y] = place(event);
      canvas.setPointerCapture(event.pointerId);
      fingers.set(event.pointerId, x);
      plot.focus({ preventScroll: true });
      tip.hidden = true;
      if (fingers.size === 2) {
        const [a, b] = [...fingers.values()];
        grip = { kind: "pinch", times: [timeAt(a), timeAt(b)] };
      } else if (y < MAP) { grip = { kind: "map", x, from: seen.from, to: seen.to, inside: mapTime(x) >= seen.from && mapTime(x) <= seen.to, moved: false }; }
      else if (event.shiftKey) { grip = { kind: "measure" }; measured = [timeAt(x), timeAt(x)]; redraw(); }
      else grip = { kind: "pan", x, y, from: seen.from, to: seen.to, moved: false };
    });
    canvas.addEventListener("pointermove", (event) => {
      const [x, y] = place(event);
      pointed = x > gutter ? x : null;
      if (!grip) { hover(x, y, event); return; }
      if (fingers.has(event.pointerId)) fingers.set(event.pointerId, x);
      if (grip.kind === "map") moveOnMap(x);
      else if (grip.kind === "measure") { measured[1] = timeAt(x); tell(); redraw(); }
      else if (grip.kind === "pinch" && fingers.size === 2) {
        const [a, b] = [...fingers.values()];
        const span = Math.abs((grip.times[1] - grip.times[0]) / ((b - a) / plotWidth() || 1));
        const from = grip.times[0] - ((a - gutter) / plotWidth()) * span;
        show(from, from + span);
      } else if (grip.kind === "pan") {
        if (Math.abs(x - grip.x) > 3) grip.moved = true;
        const shift = ((grip.x - x) / plotWidth()) * (grip.to - grip.from);
        if (grip.moved) show(grip.from + shift, grip.to + shift);
      }
    });
    const release = (event) => {
      if (grip?.kind === "map" && !grip.moved && event.type === "pointerup") toMap(grip.x);
      if (grip?.kind === "pan" && !grip.moved && event.type === "pointerup") choose(at(...place(event)));
      fingers.delete(event.pointerId);
      grip = null;
    };
    canvas.addEventListener("pointerup", release);
    canvas.addEventListener("pointercancel", release);
    canvas.addEventListener("pointerleave", () => { pointed = null; hovered = null; tip.hidden = true; redraw(); });
    canvas.addEventListener("dblclick", (event) => {
      const what = at(...place(event));
      if (what) frame(what.start, what.start + what.extent, 0.1);
    });
    canvas.addEventListener("wheel", (event) => {
      const zooms = event.ctrlKey || event.metaKey || (document.activeElement === plot && !event.shiftKey && Math.abs(event.deltaY) > Math.abs(event.deltaX));
      const sideways = event.shiftKey ? event.deltaY || event.deltaX : event.deltaX;
      if (!zooms && Math.abs(sideways) <= Math.abs(event.deltaY) && !event.shiftKey) return; // the page scrolls
      event.preventDefault();
      const [x] = place(event);
      if (zooms) zoom(Math.exp(Math.max(-1, Math.min(1, event.deltaY / 240))), timeAt(Math.max(x, gutter)));
      else pan(sideways / plotWidth());
    }, { passive: false });

    const tell = () => {
      const [from, to] = [...measured].sort((a, b) => a - b);
      said.textContent = `Measured: ${both(to - from)}, from ${exact(from)} to ${exact(to)}.`;
    };
    const hover = (x, y, event) => {
      const what = at(x, y);
      if (what?.index !== hovered?.index || what?.row !== hovered?.row) { hovered = what; redraw(); }
      tip.hidden = !what || event.pointerType === "touch";
      if (tip.hidden) return;
      const { title, pairs } = facts(what);
      const list = element("dl");
      for (const [word, value] of pairs) list.append(element("dt", {}, word), element("dd", {}, value));
      tip.replaceChildren(element("p", {}, title), list);
      const box = tip.getBoundingClientRect();
      const left = x + 14 + box.width > width ? x - 14 - box.width : x + 14;
      tip.style.left = `${Math.max(0, left)}px`;
      const below = event.clientY + 16 + box.height < innerHeight;
      tip.style.top = `${below ? y + 16 : y - 10 - box.height}px`;
    };

    // --- addresses: #timeline/START-END goes there ---
    const follow = () => {
      const match = location.hash.match(/^#(.+)\/(\d+)-(\d+)$/);
      if (!match || match[1] !== figure.dataset.anchor) return;
      linked = [Number(match[2]), Number(match[3])];
      frame(...linked);
      figure.dataset.linked = `${match[2]}-${match[3]}`;
      said.textContent = `From ${exact(linked[0])} to ${exact(linked[1])}, ${both(linked[1] - linked[0])}.`;
      figure.scrollIntoView({ block: "start" });
    };
    addEventListener("hashchange", follow);

    new ResizeObserver(() => { if (plot.clientWidth && plot.clientWidth !== width) arrange(); }).observe(plot);
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", colour);
    new MutationObserver(colour).observe(document.documentElement, { attributes: true, attributeFilter: ["data-theme"] });
    arrange();
    colour();
    follow();
    figure.dataset.state = "ready";
  };

  const begin = (figure) => {
    if (figure.dataset.state) return;
    start(figure).catch((error) => {
      figure.dataset.state = "failed";
      figure.querySelector(".stage").textContent = "The timeline could not be drawn; the worst moments are in the table.";
      console.error(error);
    });
  };
  const figures = [...document.querySelectorAll("[data-view=timeline]")];
  const near = new IntersectionObserver((entries) => {
    for (const entry of entries) if (entry.isIntersecting) { near.unobserve(entry.target); begin(entry.target); }
  }, { rootMargin: "600px" });
  for (const figure of figures) near.observe(figure);
  const called = () => {
    for (const figure of figures) if (location.hash.startsWith(`#${figure.dataset.anchor}/`)) begin(figure);
  };
  addEventListener("hashchange", called);
  called();
})();
