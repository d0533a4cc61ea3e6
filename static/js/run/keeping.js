// Copying a link keeps the spans that it shows with the run, where the user may: others are deleted when they are old.
import { $, setText } from "../lib/dom.js";

/** Keeps the spans of the iterations shown, and says below the timeline what came of it. */
export async function keepShown(timeline, section) {
  const form = $("[data-keep]", section), told = $("[data-kept-told]", section), [first, last] = timeline.shownIterations();
  told.hidden = first === null;
  if (first === null) return;
  if (!form) { setText(told, "The spans of this link are deleted when they are old: only operators keep them."); return; }
  setText(told, "Keeping the spans of this link…");
  const answer = await asked(form, first, last);
  if (answer.range) {
    setText(told, `The spans of this link are kept: ${answer.range.iterations}.`);
    $("#kept-ranges")?.dispatchEvent(new Event("meridian:kept"));
  } else setText(told, `The spans of this link are not kept. ${answer.error}`);
}

async function asked(form, first, last) {
  const body = new FormData(form);
  body.set("from", first);
  body.set("to", last);
  try {
    const response = await fetch(form.action, { method: "POST", body, headers: { Accept: "application/json" } });
    return await response.json();
  } catch {
    return { error: "The site did not answer: copy the link again later." };
  }
}
