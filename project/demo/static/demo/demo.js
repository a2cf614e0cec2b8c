// The demo's own script: renders what arrives, sends forms without a reload, shows the state of the tab's socket.
// Data only ever becomes text: no markup is made from it.

const me = Number(document.body.dataset.user || 0);
const clock = new Intl.DateTimeFormat(undefined, { day: "numeric", month: "short" });
const number = new Intl.NumberFormat("en");
const HUES = 8;

const ago = (iso) => {
  const seconds = (Date.now() - new Date(iso).getTime()) / 1000;
  if (seconds < 60) return "now";
  if (seconds < 3600) return `${Math.floor(seconds / 60)} min`;
  return seconds < 86400 ? `${Math.floor(seconds / 3600)} h` : clock.format(new Date(iso));
};

const initials = (name) => {
  const words = String(name).split(/\s+/).filter((word) => /[\p{L}\p{N}]/u.test(word[0] || ""));
  return words.length ? (words[0][0] + (words.length > 1 ? words[words.length - 1][0] : "")).toUpperCase() : "";
};

const put = (root, name, value) => {
  const spot = root.querySelector(`[data-field="${name}"]`);
  if (!spot) return;
  const text = name === "at" ? ago(value) : String(value ?? "");
  if (name === "at" && spot.dateTime !== value) spot.dateTime = value ?? "";
  if (spot.textContent !== text) spot.textContent = text;
};

const face = (root, id, name) => {
  const avatar = root.querySelector("[data-avatar]");
  avatar.textContent = initials(name);
  avatar.className = avatar.className.replace(/\s*hue-\d/, "") + ` hue-${id % HUES}`;
};

// Bring a list into the state of `rows` with as few changes as possible, so that focus, selection and scroll survive.
const list = (view, rows, fill) => {
  const box = view.querySelector("[data-list]");
  const shape = view.querySelector("[data-template]");
  const old = new Map([...box.children].map((child) => [child.dataset.key, child]));
  const first = old.size === 0;
  let place = box.firstElementChild;
  for (const row of rows) {
    const key = String(row.id);
    let item = old.get(key);
    if (item) old.delete(key);
    else {
      item = shape.content.firstElementChild.cloneNode(true);
      item.dataset.key = key;
      if (!first) item.classList.add("arrived");
    }
    fill(item, row);
    if (item === place) place = place.nextElementSibling;
    else box.insertBefore(item, place);
  }
  for (const gone of old.values()) gone.remove();
  const empty = view.querySelector("[data-empty]");
  if (empty) empty.hidden = rows.length > 0;
};

const flash = (spot) => {
  spot.classList.remove("changed");
  requestAnimationFrame(() => spot.classList.add("changed"));
};

const views = {
  count(view, data) {
    const n = data[view.dataset.path] || 0;
    const bubble = view.querySelector("[data-count]");
    bubble.hidden = n === 0;
    view.querySelector("[data-number]").textContent = n > 99 ? "99+" : String(n);
  },
  feed(view, data) {
    list(view, data.posts, (item, row) => {
      for (const name of ["name", "text", "at"]) put(item, name, row[name]);
      face(item, row.author, row.name);
    });
  },
  room(view, data) {
    const atEnd = view.scrollHeight - view.scrollTop - view.clientHeight < 80;
    list(view, data.messages, (item, row) => {
      for (const name of ["name", "text", "at"]) put(item, name, row[name]);
      face(item, row.author, row.name);
      item.classList.toggle("own", row.author === me);
    });
    if (atEnd) view.scrollTop = view.scrollHeight;
    const newest = data.messages[data.messages.length - 1];
    if (newest && newest.author !== me) room?.read();
  },
  here(view, data) {
    const box = view.querySelector("[data-list]");
    box.replaceChildren(
      ...data.people.slice(0, 6).map((person) => {
        const item = document.createElement("li");
        const avatar = document.createElement("span");
        const letters = document.createElement("span");
        const name = document.createElement("span");
        avatar.className = `avatar small hue-${person.id % HUES}`;
        avatar.title = person.name;
        letters.ariaHidden = "true";
        letters.textContent = initials(person.name);
        name.className = "visually-hidden";
        name.textContent = person.name;
        avatar.append(letters, name);
        item.append(avatar);
        return item;
      }),
    );
    view.querySelector("[data-here-text]").textContent = `${data.people.length} here`;
    if (room) room.shown = data.sessions;
  },
  typing(view, data) {
    const others = data.people.filter((person) => person.id !== me);
    const text = view.querySelector("[data-typing-text]");
    const names = others.map((person) => person.name);
    text.textContent =
      names.length === 0 ? "" : names.length < 3 ? `${names.join(" and ")} ${names.length > 1 ? "are" : "is"} typing …` : "Several people are typing …";
    clearTimeout(view.fade);
    if (others.length) view.fade = setTimeout(() => (text.textContent = ""), 1000 * Math.max(...others.map((p) => p.seconds)));
  },
  unread(view, data) {
    for (const bubble of view.querySelectorAll("[data-room]")) {
      const n = data.rooms[bubble.dataset.room] || 0;
      bubble.hidden = n === 0;
      bubble.querySelector("[data-number]").textContent = String(n);
    }
  },
  notices(view, data) {
    list(view, data.groups, (item, row) => {
      for (const name of ["count", "text", "actor", "at"]) put(item, name, row[name]);
    });
    view.querySelector("[data-total]").textContent = String(data.unseen);
    view.querySelector("[data-clear]").disabled = data.unseen === 0;
  },
  tile(view, data) {
    const spot = view.querySelector('[data-field="value"]');
    const moved = spot.textContent !== data.value;
    for (const name of ["value", "unit", "at"]) put(view, name, data[name]);
    if (moved) flash(view.querySelector(".tile-value"));
  },
  work(view, data) {
    const all = Math.max(1, data.everybody);
    view.querySelector("[data-percent]").textContent = `${((100 * data.saved) / all).toFixed(1)} %`;
    for (const side of ["done", "everybody"]) {
      const bar = view.querySelector(`[data-bar="${side}"]`);
      bar.max = all;
      bar.value = data[side];
      view.querySelector(`[data-n="${side}"]`).textContent = number.format(data[side]);
    }
    for (const row of data.types) {
      const line = view.querySelector(`[data-type="${row.type}"]`);
      for (const side of ["done", "everybody"]) {
        if (line) line.querySelector(`[data-cell="${side}"]`).textContent = number.format(row[side]);
      }
    }
  },
};

// Captured, because these events are dispatched at each element and do not bubble.
document.addEventListener(
  "visibility:update",
  ({ target, detail }) => {
    const name = target.dataset?.view;
    if (name && detail.data) views[name](target, detail.data);
  },
  true,
);

// --- the socket's state ---

const pill = document.querySelector("[data-socket]");
const words = { open: "live", connecting: "connecting", waiting: "offline, trying again", closed: "disconnected" };
const showState = ({ state, code }) => {
  if (!pill || !words[state]) return;
  pill.dataset.state = state;
  const spot = pill.querySelector("[data-socket-text]");
  const text = state === "closed" && code ? `${words.closed} (${code})` : words[state];
  if (spot.textContent !== text) spot.textContent = text;
};
document.addEventListener("visibility:state", (event) => showState(event.detail));
showState({ state: document.documentElement.dataset.visibilityState });

document.addEventListener("visibility:watchers", ({ detail }) => {
  if (room && detail.resource === `room:${roomPage.dataset.roomPage}`) room.count(detail.count);
});

// What may no longer be seen leaves the page.
document.addEventListener(
  "visibility:error",
  ({ target, detail }) => {
    const list = target.dataset?.view && target.querySelector("[data-list]");
    if (list && ["revoked", "forbidden"].includes(detail.code)) list.replaceChildren();
  },
  true,
);

// --- forms without a reload ---

const post = (url, fields) => {
  const token = document.querySelector("[name=csrfmiddlewaretoken]")?.value || "";
  return fetch(url, {
    method: "POST",
    headers: { "X-CSRFToken": token, Accept: "application/json" },
    body: fields instanceof FormData ? fields : new URLSearchParams(fields || {}),
    credentials: "same-origin",
    redirect: "error",
  });
};

document.addEventListener("submit", async (event) => {
  const form = event.target;
  if (!form.matches("[data-async]")) return;
  event.preventDefault();
  if (form.dataset.busy) return;
  form.dataset.busy = "1";
  const error = form.querySelector("[data-error]");
  const tell = (text) => error && (error.textContent = text);
  tell("");
  try {
    const answer = await post(form.action, new FormData(form));
    const said = await answer.json().catch(() => ({}));
    if (!answer.ok) throw new Error(said.error || "That did not work. Please try again.");
    if ("reset" in form.dataset) form.reset();
    if (form.dataset.toggle) toggle(form, said.on);
  } catch (reason) {
    tell(reason instanceof TypeError ? "The server cannot be reached. Please try again." : reason.message);
  } finally {
    delete form.dataset.busy;
  }
});

const toggle = (form, on) => {
  const [off, yes] = form.dataset.toggle.split("|");
  const button = form.querySelector("button");
  button.classList.toggle("on", on);
  button.setAttribute("aria-pressed", String(on));
  button.querySelector("[data-label]").textContent = on ? yes : off;
  form.elements.on.value = on ? "0" : "1";
};

document.addEventListener("keydown", (event) => {
  const area = event.target;
  if (event.key === "Enter" && (event.metaKey || event.ctrlKey) && area.matches?.("textarea")) area.form.requestSubmit();
  const menu = document.querySelector("[data-switcher][open]");
  if (event.key === "Escape" && menu) {
    menu.open = false;
    menu.querySelector("summary").focus();
  }
});
document.addEventListener("click", (event) => {
  const menu = document.querySelector("[data-switcher][open]");
  if (menu && !menu.contains(event.target)) menu.open = false;
});

// --- a room: read marks, typing, who is here ---

const roomPage = document.querySelector("[data-room-page]");
const room = roomPage && {
  shown: roomPage.querySelectorAll(".faces li").length,
  reading: 0,
  typedAt: 0,
  // At most one request a second, and only for a tab in front: what is not seen stays unread.
  read() {
    if (document.hidden || this.reading) return;
    this.reading = setTimeout(async () => {
      await post(roomPage.dataset.read).catch(() => {});
      this.reading = 0;
    }, 400);
  },
  typing() {
    if (Date.now() - this.typedAt < 2500) return;
    this.typedAt = Date.now();
    post(roomPage.dataset.typing, { still: "1" }).catch(() => {});
  },
  // The number of watchers changed: ask for the names, unless another tab's question was answered meanwhile.
  count(n) {
    clearTimeout(this.asking);
    if (n !== this.shown) this.asking = setTimeout(() => post(roomPage.dataset.here).catch(() => {}), 150 + Math.random() * 600);
  },
};
if (room) {
  const log = roomPage.querySelector(".log");
  log.scrollTop = log.scrollHeight;
  roomPage.querySelector("#message-text").addEventListener("input", (event) => event.target.value && room.typing());
  roomPage.querySelector("form").addEventListener("submit", () => (room.typedAt = 0));
  document.addEventListener("visibilitychange", () => room.read());
}

setInterval(() => {
  for (const time of document.querySelectorAll("time[datetime]")) {
    if (time.dateTime) time.textContent = ago(time.dateTime);
  }
}, 30_000);
