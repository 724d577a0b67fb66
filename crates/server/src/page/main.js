// The page at `/`: conversations with the models of the server that served it. It asks this server alone, and keeps
// conversations in this browser.

import { answering } from "./answer.js";
import { listenToComposer } from "./composer.js";
import { current, events, refresh } from "./conversation.js";
import { listenToList, newConversation, openFromAddress, toggleList } from "./conversations.js";
import { listenToMessages, regenerateLast, stopAnswer } from "./messages.js";
import { connect } from "./server.js";
import { listenToSettings, openSettings, toggleSettings, toggleTheme } from "./settings.js";
import { migrate, onOtherTab } from "./storage.js";

const KEYS = { KeyN: newConversation, KeyR: regenerateLast, KeyC: toggleList, KeyS: toggleSettings, KeyT: toggleTheme };

function listenToKeys() {
  document.addEventListener("keydown", (event) => {
    if (event.key === "Escape" && !stopAnswer()) openSettings(false);
    const act = event.altKey && !event.ctrlKey && !event.metaKey && KEYS[event.code];
    if (act) {
      event.preventDefault();
      act();
    }
  });
}

await migrate();
listenToSettings();
listenToMessages();
listenToComposer();
listenToList();
listenToKeys();
onOtherTab((id) => {
  if (id === current.id) refresh(answering);
});
for (const name of ["opened", "list", "refreshed"]) {
  events.addEventListener(name, () => {
    document.title = current.title ? `${current.title} · Hotmetal` : "Hotmetal";
  });
}
await openFromAddress();
connect();
