"use strict";
const NAMESPACE = "http://www.w3.org/2000/svg";
const byId = (name) => document.getElementById(name);

// Everything is put in as text: a file that anybody may have written never becomes markup.
function list(target, items) {
  target.replaceChildren(...items.map(([text, tone]) => {
    const item = document.createElement("li");
    item.textContent = text;
    item.className = tone;
    return item;
  }));
}

function draw(name, steps, values, level, text) {
  const points = steps.map((step, index) => [step, Number(values[index])]).filter((point) => Number.isFinite(point[1]));
  const svg = byId(name);
  if (!points.length) { svg.replaceChildren(); byId(name + "-scale").textContent = "nothing yet"; return; }
  const heights = points.map((point) => point[1]).concat(level === null ? [] : [level]);
  const low = Math.min(...heights), span = Math.max(...heights) - low || 1;
  const first = points[0][0], width = points[points.length - 1][0] - first || 1;
  const y = (value) => 114 - 108 * (value - low) / span;
  const line = (data, kind) => {
    const path = document.createElementNS(NAMESPACE, "path");
    path.setAttribute("d", data);
    path.setAttribute("class", kind);
    return path;
  };
  const parts = [line(points.map((point, index) => (index ? "L" : "M") + (600 * (point[0] - first) / width) + " " + y(point[1])).join(""), "")];
  if (level !== null) parts.push(line("M0 " + y(level) + "L600 " + y(level), "claim"));
  svg.replaceChildren(...parts);
  byId(name + "-scale").textContent = text + ": " + low.toPrecision(4) + " to " + (low + span).toPrecision(4) + ", steps " + first + " to " + (first + width);
}

function show(view) {
  const headline = byId("headline");
  headline.textContent = view.headline;
  headline.className = view.tone;
  document.title = (view.tone === "bad" ? "ALARM - " : "") + "askgauss watch";
  list(byId("notes"), (view.notes || []).map((text) => [text, "muted"]));
  byId("lines").replaceChildren(...(view.lines || []).flatMap(([name, value]) => {
    const term = document.createElement("dt"), detail = document.createElement("dd");
    term.textContent = name;
    detail.textContent = value;
    return [term, detail];
  }));
  list(byId("parts"), (view.parts || []).map(([name, value, tone]) => [name + ": " + value, tone]));
  if (view.feed) {
    const course = view.feed.course;
    draw("noise", course.step, course.noise, 1, "from least to most");
    draw("bound", course.step, course.bound, view.feed.claim ? view.feed.claim.epsilon : null, "the dashed line is the claim");
    draw("evidence", course.step, course.evidence, -Math.log10(view.feed.error), "the dashed line is the alarm");
  }
}

async function look() {
  try {
    const answer = await fetch("data.json", { cache: "no-store" });
    show(await answer.json());
    byId("connection").textContent = "";
  } catch (error) {
    byId("connection").textContent = "askgauss watch has stopped: this is what it last said.";
  }
  setTimeout(look, 1000);
}
look();
