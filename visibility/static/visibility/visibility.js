// @ts-check
/**
 * visibility.js: tells a Django backend what this browser is looking at, and brings what changes.
 *
 * One ES module: no build step, no imports, no globals, nothing inline (a page with a strict CSP can use it).
 *
 *   {% load visibility %}{% visibility_script %}                        in a template: loads this file and connects
 *   <ul data-visibility="feed:42">                                      watched while it can be seen
 *   <p data-visibility="badge:7 unread:7" data-visibility-version="9">  two resources; what is shown is version 9
 *
 *   import { connect, watch, unwatch, close, status } from ".../visibility.js";
 *   connect({ url: "/ws/visibility/" });
 *   const stop = watch("feed:42", (update) => render(update.data));     stop() or unwatch("feed:42") ends it
 *
 * WHAT IS WATCHED
 *   An element with `data-visibility` is watched while it is in the viewport and, `linger` seconds long, after it left.
 *   A callback of `watch()` is watched until it is taken back. Elements that are added, removed or renamed later are
 *   noticed (not inside shadow roots). While every tab of this browser is hidden the server is told so (`state`) and
 *   does for each data type what its `background` says. While another tab is in front, what only hidden tabs ask for is
 *   not watched, except by `watch(resource, callback, { background: true })`. A tab that comes back gets what moved.
 *
 * OPTIONS of connect(), or as JSON in the script tag's `data-visibility-connect`; all times in seconds
 *   url         where the socket is                            "/ws/visibility/"
 *   scope       tabs share a socket only within one scope      ""    (the template tag puts a hash of the user here)
 *   shared      false: a socket for this tab alone             true
 *   linger      watched so long after leaving the viewport     1
 *   margin      grows or shrinks the viewport (rootMargin)     "0px"
 *   retryBase, retryCap   the n-th retry waits a random part of min(cap, base * 2^n)    1, 30
 *   auto        false in the script tag: do not connect before connect() is called      true
 *
 * EVENTS: CustomEvents. Those about a resource are dispatched at each of its elements, where they do not bubble (so
 * that an outer element never hears an inner one's; a capturing listener hears them all), and then once at <body>, from
 * where they bubble to document.
 *   visibility:update    {resource, version, data, state, event_at, built_at, missed}   a newer version is here;
 *                        state is fresh, stale (a newer one follows) or rebuilt; times are seconds since 1970;
 *                        missed: how many changes it sums up
 *   visibility:changed   {resource, version}    the same moment without the data, to fetch HTML anew:
 *                        <ul data-visibility="feed:42" data-visibility-version="…" hx-get="/feed/"
 *                        hx-trigger="visibility:changed" hx-swap="outerHTML">, or `visibility:changed from:body`. With
 *                        the version, a change that comes while HTML is on its way is not missed
 *   visibility:watchers  {resource, count}      how many sessions watch it
 *   visibility:error     {code, detail, resource, reason}    code is the server's (bad_frame, unknown_resource,
 *                        forbidden, limit, rate), or `revoked`: the right to see it ended, remove it from the page.
 *                        The console is told of a forbidden or unknown resource, once, unless a listener calls
 *                        preventDefault()
 *   visibility:state     {state, code, retryIn, session, shared}    only at <body>; also <html data-visibility-state>
 *
 * STATES
 *   connecting   a socket is being opened            open     the server said hello
 *   waiting      lost; again in `retryIn` seconds    closed   by close() (code 1000), or the server said stop (`code`)
 *
 * CLOSE CODES: 4500 to 4999, 4401 and 4403 mean stop: connect() or a freshly loaded page tries again. Every other code
 * (1001, 1006, 1011, 1012, 4000 to 4499, …) means try again with full jitter. 1013, 4409, 4413, 4429, 4430 and 4450 say
 * that the server is under strain: the wait is then a random part of the upper half of `retryCap`.
 *
 * ONE SOCKET FOR MANY TABS: this same file is also a SharedWorker, in which the Hub below owns the socket. Its timers
 * are not slowed down as those of hidden tabs are. Where a SharedWorker cannot be had (no such thing, another origin
 * for static files, a CSP without worker-src), the same Hub runs in the tab: a socket for each tab, else no difference.
 */

/**
 * @typedef {{ url: string, scope: string, shared: boolean, linger: number, margin: string,
 *             retryBase: number, retryCap: number, auto: boolean }} Options
 * @typedef {{ op: "update", resource: string, version: number, data: any, state: "fresh"|"stale"|"rebuilt",
 *             event_at: number|null, built_at: number, missed: number }} Update
 * @typedef {{ state: "connecting"|"open"|"waiting"|"closed", code: number|null, retryIn: number|null,
 *             session: string|null }} Status
 * @typedef {{ have: number, background: boolean }} Want  `have`: the version that is shown, 0 for none
 * @typedef {{ op: "here", visible: boolean, wants: Map<string, Want>, again: string[], probe?: boolean,
 *             attach?: Options } | { op: "ack", resource: string, version: number } | { op: "bye" }} FromTab
 * @typedef {{ op: "beat" } | { op: "state", status: Status } | { op: "frame", frame: any }} FromHub
 * @typedef {ReturnType<typeof setTimeout>|undefined} Timer
 */

/** @type {Options} */
const DEFAULTS = {
  url: "/ws/visibility/", scope: "", shared: true, linger: 1, margin: "0px", retryBase: 1, retryCap: 30, auto: true,
};
/** Part of the worker's name: tabs whose version of this file speaks otherwise to its hub get a worker of their own. */
const REVISION = 1;
/** Milliseconds between two signs of life of a tab, and how long the hub believes in a silent one: the timers of a
 *  hidden tab may run only once a minute. */
const BEAT = 10_000;
const TAB_LEASE = { front: 3.5 * BEAT, hidden: 18 * BEAT };
/** Milliseconds until the worker, a new socket or a ping must have answered. */
const PATIENCE = 5_000;
/** Seconds: proxies cut connections that are silent for 60. */
const HEARTBEAT_MAX = 25;
/** Until the server's hello says better. */
const LIMITS = { watches_per_socket: 200, frame_bytes: 16_384, frames_per_second: 20 };

const STOP = new Set([4401, 4403]);
const STRAINED = new Set([1013, 4409, 4413, 4429, 4430, 4450]);

/** @param {number|null} code */
const isFinal = (code) => code !== null && (code >= 4500 || STOP.has(code));

/**
 * Full jitter: all who lost their connection at one moment come back spread over the whole wait.
 * @param {number} attempt @param {number} code @param {Options} options @returns {number} seconds
 */
function pause(attempt, code, { retryBase, retryCap }) {
  if (STRAINED.has(code)) return retryCap * (0.5 + Math.random() / 2);
  return Math.random() * Math.min(retryCap, retryBase * 2 ** attempt);
}

/**
 * Cut a list of resources so that a frame that names each twice, with a version, stays within `bytes`.
 * @param {Iterable<string>} names @param {{ frame_bytes: number, watches_per_socket: number }} limits
 */
function batches(names, { frame_bytes, watches_per_socket }) {
  /** @type {string[][]} */
  const all = [];
  let room = 0;
  for (const name of names) {
    const size = 6 * name.length + 32; // UTF-8 takes at most 3 bytes for each unit of length
    if (room < size || all[all.length - 1].length >= watches_per_socket) {
      all.push([]);
      room = frame_bytes - 100;
    }
    all[all.length - 1].push(name);
    room -= size;
  }
  return all;
}

// === The hub: one socket for the tabs that speak to it ================================================================

/**
 * Every tab states as a whole what it wants (`here`), on each change and on each beat, so one that was forgotten is
 * back with its next word. The hub compares the sum of these statements with what it told the server on this
 * connection, and sends the difference: however often a wish changes, the last one wins.
 */
class Hub {
  /** @type {Map<MessagePort, { visible: boolean, wants: Map<string, Want>, until: number }>} */
  tabs = new Map();
  /** What came in about watched resources; `shown` by a tab, and `acked` to the server, are versions.
   *  @type {Map<string, { update?: Update, count?: number, shown?: number, acked?: number }>} */
  known = new Map();
  /** What the server was told to watch on this connection, and from which version. @type {Map<string, number>} */
  sent = new Map();
  /** What of that the server answered: only this is handed from one tab to another. @type {Set<string>} */
  live = new Set();
  /** What of that must be said once more. @type {Set<string>} */
  redo = new Set();
  /** What was behind at the last pong, and at which version. @type {Map<string, number>} */
  behind = new Map();
  /** What the server refused on this connection. @type {Set<string>} */
  refused = new Set();
  /** What waits until there is room for it among the socket's watches. @type {Set<string>} */
  over = new Set();
  /** The watch and unwatch frames without an answer yet, by id. @type {Map<number, { op: string, names: string[] }>} */
  unanswered = new Map();

  options = DEFAULTS;
  limits = LIMITS;
  heartbeat = 20;
  /** @type {Status} */ status = { state: "closed", code: null, retryIn: null, session: null };
  /** @type {WebSocket|null} */ socket = null;
  /** What the server believes about the tabs; null: nothing yet. @type {boolean|null} */ front = null;
  attempt = 0;
  lastId = 0;
  nextFlush = 0;
  /** @type {{ retry?: Timer, answer?: Timer, beat?: Timer, flush?: Timer }} */ timers = {};

  /** @param {MessagePort} port */
  attach(port) {
    port.onmessage = ({ data }) => this.hear(port, data);
  }

  // --- tabs ---------------------------------------------------------------------------------------------------------

  /** @param {MessagePort} port @param {FromTab} message */
  hear(port, message) {
    switch (message.op) {
      case "here":
        return this.here(port, message);
      case "ack": {
        const known = this.known.get(message.resource);
        if (known) known.shown = Math.max(known.shown ?? 0, message.version);
        return this.schedule();
      }
      case "bye":
        this.tabs.delete(port);
        port.close();
        return this.tabs.size ? this.schedule() : this.end(1000);
    }
  }

  /** @param {MessagePort} port @param {FromTab & { op: "here" }} statement */
  here(port, { visible, wants, again, attach, probe }) {
    const before = this.tabs.get(port);
    const urgent = probe || (visible && !this.inFront());
    this.tabs.set(port, { visible, wants, until: Date.now() + (visible ? TAB_LEASE.front : TAB_LEASE.hidden) });
    if (attach) this.options = attach;
    for (const resource of again) this.refused.delete(resource);
    port.postMessage({ op: "beat" });
    if (!before) port.postMessage({ op: "state", status: this.status });
    for (const resource of wants.keys()) this.catchUp(port, resource, !before?.wants.has(resource));

    const { state, code } = this.status;
    if (state === "closed" && (attach || !isFinal(code))) this.open();
    if (state === "open" && urgent) this.ping();
    if (state === "waiting" && urgent && !STRAINED.has(code ?? 0)) this.retry(this.options.retryBase * Math.random(), code);
    this.schedule();
  }

  inFront() {
    return [...this.tabs.values()].some((tab) => tab.visible);
  }

  /** What should be watched now, with the oldest version that a tab shows of it. @returns {Map<string, number>} */
  wanted() {
    const front = this.inFront();
    const wanted = new Map();
    for (const tab of this.tabs.values()) {
      for (const [resource, { have, background }] of tab.wants) {
        if (front && !tab.visible && !background) continue;
        wanted.set(resource, Math.min(have, wanted.get(resource) ?? Infinity));
      }
    }
    return wanted;
  }

  /** @param {any} frame  passed on to the tabs that want its resource; to all if it names none */
  give(frame) {
    for (const [port, { wants }] of this.tabs) {
      if (frame.resource == null || wants.has(frame.resource)) port.postMessage({ op: "frame", frame });
    }
  }

  /** Give a tab what is here and newer than what it shows. @param {MessagePort} port @param {string} resource @param {boolean} joins */
  catchUp(port, resource, joins) {
    const want = this.tabs.get(port)?.wants.get(resource);
    const since = this.sent.get(resource);
    if (!want || since === undefined || !this.live.has(resource)) return;
    const { update, count } = this.known.get(resource) ?? {};
    if (joins && count !== undefined) port.postMessage({ op: "frame", frame: { op: "watchers", resource, count } });
    if (update && update.version > want.have) {
      want.have = update.version;
      port.postMessage({ op: "frame", frame: update });
    } else if (!update && want.have < since) {
      this.redo.add(resource); // the others had it before this connection: only the server can tell
    }
  }

  /** Tabs that crashed or are frozen said no goodbye. */
  sweep() {
    for (const [port, { until }] of this.tabs) if (until < Date.now()) this.tabs.delete(port);
  }

  // --- the connection -----------------------------------------------------------------------------------------------

  /** @param {Status["state"]} state @param {Partial<Status>} more */
  say(state, more = {}) {
    this.status = { state, code: null, retryIn: null, session: null, ...more };
    for (const port of this.tabs.keys()) port.postMessage({ op: "state", status: this.status });
  }

  open() {
    this.say("connecting");
    const socket = new WebSocket(this.options.url);
    this.socket = socket;
    socket.onmessage = ({ data }) => socket === this.socket && this.receive(data);
    socket.onclose = ({ code }) => socket === this.socket && this.lost(code);
    this.expect();
  }

  /** Any frame within a while, or this connection is given up: a half-open socket does not say that it is dead. */
  expect() {
    clearTimeout(this.timers.answer);
    const dead = () => (this.socket?.close(), this.lost(1006));
    this.timers.answer = setTimeout(dead, Math.max(PATIENCE, 500 * this.heartbeat));
  }

  /** Forget what was true of one connection. Updates stay known: the next connection goes on from their versions. */
  reset() {
    for (const timer of Object.values(this.timers)) clearTimeout(timer);
    this.timers = {};
    this.socket = this.front = null;
    for (const memory of [this.sent, this.live, this.redo, this.behind, this.refused, this.over, this.unanswered]) memory.clear();
  }

  /** @param {number} code */
  lost(code) {
    this.reset();
    this.sweep();
    if (!this.tabs.size || isFinal(code)) return this.end(code);
    this.retry(pause(this.attempt++, code, this.options), code);
  }

  /** @param {number} seconds @param {number|null} code */
  retry(seconds, code) {
    clearTimeout(this.timers.retry);
    this.timers.retry = setTimeout(() => this.open(), 1000 * seconds);
    this.say("waiting", { code, retryIn: seconds });
  }

  /** No connection until a tab asks again. @param {number} code */
  end(code) {
    const socket = this.socket;
    this.reset();
    this.known.clear();
    socket?.close(1000);
    this.say("closed", { code });
  }

  nextBeat() {
    clearTimeout(this.timers.beat);
    const seconds = Math.min(this.heartbeat, HEARTBEAT_MAX) * (0.8 + Math.random() / 5);
    this.timers.beat = setTimeout(() => {
      this.attempt = 0; // it held for a whole heartbeat: the next loss is another story
      this.sweep();
      if (!this.tabs.size) return this.end(1000);
      this.ping();
      this.schedule();
    }, 1000 * seconds);
  }

  ping() {
    const wanted = this.wanted();
    const groups = batches(this.sent.keys(), this.limits);
    for (const names of groups.length ? groups : [[]]) {
      this.send({ op: "ping", have: Object.fromEntries(names.map((name) => [name, this.version(name, wanted)])) });
    }
    this.expect();
    this.nextBeat();
  }

  /** @param {object} frame */
  send(frame) {
    this.socket?.send(JSON.stringify(frame));
  }

  // --- what to tell the server --------------------------------------------------------------------------------------

  /** The version from which the server should go on. @param {string} resource @param {Map<string, number>} wanted */
  version(resource, wanted) {
    return this.known.get(resource)?.update?.version ?? wanted.get(resource) ?? 0;
  }

  /** Flush at once if nothing was sent lately, else with what else comes up meanwhile. */
  schedule() {
    if (this.status.state !== "open" || this.timers.flush) return;
    this.timers.flush = setTimeout(() => this.flush(), Math.max(0, this.nextFlush - Date.now()));
  }

  /** Send the difference between what is wanted and what was said. At most four frames, unless the lists are very long:
   *  with the pause until the next flush that stays within the server's rate. */
  flush() {
    this.timers.flush = undefined;
    this.nextFlush = Date.now() + Math.max(100, 4000 / this.limits.frames_per_second);
    const front = this.inFront();
    const wanted = this.wanted();
    if (this.front !== front) this.send({ op: "state", visible: (this.front = front) });

    for (const memory of [this.known, this.refused, this.over]) {
      for (const name of memory.keys()) if (!wanted.has(name)) memory.delete(name);
    }
    this.ask("unwatch", [...this.sent.keys()].filter((name) => !wanted.has(name)), wanted);
    let room = this.limits.watches_per_socket - this.sent.size;
    this.ask("watch", [...wanted.keys()].filter((name) => {
      if (this.sent.has(name)) return this.redo.has(name);
      if (this.refused.has(name)) return false;
      if (room-- > 0) return true;
      if (!this.over.has(name)) this.give({ op: "error", code: "limit", detail: "more than one socket may watch", resource: name });
      this.over.add(name);
      return false;
    }), wanted);
    this.redo.clear();

    const unsaid = [...this.known].filter(([, { shown = 0, acked = 0 }]) => shown > acked);
    for (const [resource, known] of unsaid.slice(0, 1)) {
      this.send({ op: "ack", resource, version: (known.acked = known.shown) });
    }
    if (unsaid.length > 1) this.schedule();
  }

  /** @param {"watch"|"unwatch"} op @param {string[]} resources @param {Map<string, number>} wanted */
  ask(op, resources, wanted) {
    for (const names of batches(resources, this.limits)) {
      const id = ++this.lastId;
      /** @type {Record<string, number>} */
      const since = {};
      for (const name of names) {
        const version = this.version(name, wanted);
        if (version) since[name] = version;
        op === "watch" ? this.sent.set(name, version) : this.sent.delete(name) && this.live.delete(name);
      }
      this.unanswered.set(id, { op, names });
      this.send(op === "watch" ? { op, id, resources: names, since } : { op, id, resources: names });
    }
  }

  // --- what the server says -----------------------------------------------------------------------------------------

  /** @param {string} text */
  receive(text) {
    clearTimeout(this.timers.answer);
    const frame = JSON.parse(text);
    switch (frame.op) {
      case "hello":
        this.heartbeat = frame.heartbeat;
        this.limits = { ...LIMITS, ...frame.limits };
        this.nextFlush = 0;
        this.say("open", { session: frame.session });
        this.nextBeat();
        return this.schedule();
      case "watched":
        this.unanswered.delete(frame.id);
        for (const [resource, { watchers }] of Object.entries(frame.resources)) {
          if (!this.sent.has(resource)) continue;
          this.live.add(resource);
          this.count(resource, watchers);
          for (const port of this.tabs.keys()) this.catchUp(port, resource, false);
        }
        return;
      case "unwatched":
        this.unanswered.delete(frame.id);
        return;
      case "watchers":
        return this.count(frame.resource, frame.count);
      case "update":
        return this.update(frame);
      case "pong":
        return this.heal(frame.versions);
      case "revoked":
        return this.refuse({ ...frame, op: "error", code: "revoked" });
      case "error":
        return this.error(frame);
    }
  }

  /** @param {string} resource @param {number} count */
  count(resource, count) {
    if (!this.sent.has(resource)) return;
    this.known.set(resource, { ...this.known.get(resource), count });
    this.give({ op: "watchers", resource, count });
  }

  /** Older and equal versions are ignored, and what nobody watches any more. @param {Update} update */
  update(update) {
    const { resource, version } = update;
    const known = this.known.get(resource);
    if (!this.sent.has(resource) || version <= (known?.update?.version ?? 0)) return;
    this.known.set(resource, { ...known, update });
    for (const port of this.tabs.keys()) this.catchUp(port, resource, false);
  }

  /**
   * A pong lists all that the server believes is watched, with the newest versions. It sends by itself what the ping's
   * `have` lacks. What is missing, or as far behind as it was at the last pong, is watched anew from what is here.
   * @param {Record<string, number>} versions
   */
  heal(versions) {
    const wanted = this.wanted();
    const waiting = new Set([...this.unanswered.values()].flatMap(({ names }) => names));
    const before = this.behind;
    this.behind = new Map();
    for (const resource of this.sent.keys()) {
      const have = this.version(resource, wanted);
      const newest = versions[resource];
      if (waiting.has(resource) || newest <= have) continue;
      if (newest === undefined || (this.front && before.get(resource) === have)) this.redo.add(resource);
      this.behind.set(resource, have);
    }
    if (this.redo.size) this.schedule();
  }

  /** @param {any} error  names a resource that is not asked for again on this connection */
  refuse(error) {
    const { resource, code } = error;
    for (const memory of [this.sent, this.live, this.known]) memory.delete(resource);
    this.refused.add(resource);
    this.give(error);
    if (code !== "limit") return;
    // Others make room: ask again later.
    setTimeout(() => this.refused.delete(resource) && this.schedule(), 1000 * this.heartbeat * (0.5 + Math.random()));
  }

  /** @param {any} frame */
  error(frame) {
    const { id, code, resource } = frame;
    const asked = this.unanswered.get(id);
    if (code === "rate" || (code === "limit" && asked && resource == null)) {
      // Which frames were dropped is not known: after a breath, say again all that was not answered.
      for (const { op, names } of this.unanswered.values()) {
        for (const name of names) op === "watch" ? this.redo.add(name) : this.sent.set(name, 0);
      }
      this.unanswered.clear();
      this.front = null;
      clearTimeout(this.timers.flush);
      this.timers.flush = setTimeout(() => this.flush(), 1000 + 1000 * Math.random());
      return this.give(frame);
    }
    if (asked?.op !== "watch") return this.give(frame);
    // A watch that was sent after the refused one has an answer of its own coming.
    const later = [...this.unanswered].flatMap(([other, { names }]) => (other > id ? names : []));
    for (const name of resource == null ? asked.names : [resource]) {
      if (!later.includes(name)) this.refuse({ ...frame, resource: name });
    }
    asked.names = asked.names.filter((name) => resource != null && name !== resource);
    if (!asked.names.length) this.unanswered.delete(id);
  }
}

// === The tab ==========================================================================================================

/** A tab's line to its hub, wherever that runs. */
class Link {
  /** @type {MessagePort|null} */ port = null;
  /** Kept, so that an error finds its listener. @type {SharedWorker|null} */ worker = null;
  /** Set while the hub runs in this tab. @type {Hub|null} */ hub = null;
  /** @type {Timer} */ patience = undefined;
  /** @type {ReturnType<typeof setInterval>|undefined} */ timer = undefined;
  unanswered = 0;

  /** @param {Options} options @param {(message: FromHub) => void} hear @param {() => object} statement  what `here` says of this tab */
  constructor(options, hear, statement) {
    this.options = options;
    this.hear = hear;
    this.statement = statement;
  }

  open() {
    this.close();
    this.timer = setInterval(() => this.beat(), BEAT);
    if (!this.options.shared || typeof SharedWorker !== "function") return this.alone();
    try {
      const name = `visibility ${REVISION} ${this.options.url} ${this.options.scope}`;
      const worker = new SharedWorker(import.meta.url, { type: "module", name });
      worker.onerror = () => worker === this.worker && this.alone();
      this.worker = worker;
      this.patience = setTimeout(() => this.alone(), PATIENCE);
      this.use(worker.port);
    } catch {
      this.alone(); // static files of another origin, or the page's policy
    }
  }

  /** Run the hub in this tab. */
  alone() {
    this.hangUp();
    const { port1, port2 } = new MessageChannel();
    this.hub = new Hub();
    this.hub.attach(port1);
    this.use(port2);
  }

  /** @param {MessagePort} port */
  use(port) {
    this.port = port;
    this.unanswered = 0;
    port.onmessage = ({ data }) => {
      clearTimeout(this.patience);
      this.unanswered = 0;
      this.hear(data);
    };
    this.tell({ attach: this.options });
  }

  /** @param {object} more */
  tell(more = {}) {
    this.port?.postMessage({ op: "here", again: [], ...this.statement(), ...more });
  }

  beat() {
    if (this.unanswered++ >= 3) return this.open(); // the worker is gone
    this.tell();
  }

  hangUp() {
    clearTimeout(this.patience);
    this.port?.postMessage({ op: "bye" });
    this.port?.close();
    this.hub?.end(1000); // a page that is being left delivers no more messages to itself
    this.port = this.worker = this.hub = null;
  }

  close() {
    clearInterval(this.timer);
    this.hangUp();
  }
}

/**
 * @typedef {(update: Update) => any} Callback
 * @typedef {Callback|Element} Viewer
 * @typedef {{ resource: string, callbacks: Map<Callback, { background: boolean }>, elements: Set<Element>,
 *             inView: Set<Element>, shown: Map<Viewer, number>, last: Update|null, lingering: Timer }} Entry
 *   what this tab has to do with one resource
 */

/** This tab's elements and callbacks, and the events they hear. */
class Page {
  /** @type {Map<string, Entry>} */ entries = new Map();
  /** @type {Map<Element, string[]>} */ marked = new Map();
  /** Resources watched anew: a refusal of theirs is void. @type {Set<string>} */ again = new Set();
  /** Resources of which the console was told that they are refused. @type {Set<string>} */ warned = new Set();
  /** @type {Status & { shared: boolean }} */
  status = { state: "closed", code: null, retryIn: null, session: null, shared: false };
  /** Set between connect() and close(). @type {{ link: Link, viewport: IntersectionObserver, leave: () => void }|null} */
  running = null;
  linger = DEFAULTS.linger;
  telling = false;

  /** @param {Options} options */
  start(options) {
    const link = new Link(options, (message) => this.hear(message), () => this.statement());
    const viewport = new IntersectionObserver((records) => this.seen(records), { rootMargin: options.margin });
    const mutations = new MutationObserver((records) => this.mutated(records));
    const listening = new AbortController();
    const { signal } = listening;
    const leave = () => (listening.abort(), viewport.disconnect(), mutations.disconnect(), link.close());
    this.running = { link, viewport, leave };
    this.linger = options.linger;

    addEventListener("pagehide", () => link.close(), { signal });
    addEventListener("pageshow", ({ persisted }) => persisted && link.open(), { signal });
    addEventListener("online", () => link.tell({ probe: true }), { signal });
    addEventListener("offline", () => link.tell({ probe: true }), { signal });
    document.addEventListener("visibilitychange", () => link.tell(), { signal });
    mutations.observe(document, { subtree: true, childList: true, attributes: true, attributeFilter: ["data-visibility"] });
    this.scan(document);
    link.open();
  }

  stop() {
    this.running?.leave();
    for (const element of [...this.marked.keys()]) this.unmark(element);
    this.running = null;
    this.state({ state: "closed", code: 1000, retryIn: null, session: null });
  }

  // --- elements -----------------------------------------------------------------------------------------------------

  /** @param {Document|Element} root */
  scan(root) {
    if (root instanceof Element && root.matches("[data-visibility]")) this.mark(root);
    for (const element of root.querySelectorAll("[data-visibility]")) this.mark(element);
  }

  /** @param {MutationRecord[]} records */
  mutated(records) {
    for (const { type, target, addedNodes } of records) {
      if (type === "attributes") this.mark(/** @type {Element} */ (target));
      for (const node of addedNodes) if (node instanceof Element) this.scan(node);
    }
    if (records.every(({ removedNodes }) => !removedNodes.length)) return;
    for (const element of [...this.marked.keys()]) if (!element.isConnected) this.unmark(element);
  }

  /** @param {Element} element */
  mark(element) {
    const names = (element.getAttribute("data-visibility") ?? "").split(/\s+/).filter(Boolean);
    if (this.marked.get(element)?.join(" ") === names.join(" ")) return;
    this.unmark(element);
    if (!names.length || !element.isConnected) return;
    this.marked.set(element, names);
    for (const name of names) this.entry(name).elements.add(element);
    this.running?.viewport.observe(element);
  }

  /** @param {Element} element */
  unmark(element) {
    this.running?.viewport.unobserve(element);
    for (const name of this.marked.get(element) ?? []) {
      const entry = this.entry(name);
      entry.elements.delete(element);
      entry.shown.delete(element);
      this.left(entry, element);
    }
    this.marked.delete(element);
  }

  /** @param {IntersectionObserverEntry[]} records */
  seen(records) {
    for (const { target, isIntersecting } of records) {
      for (const name of this.marked.get(target) ?? []) {
        const entry = this.entry(name);
        if (!isIntersecting) {
          this.left(entry, target);
        } else if (!entry.inView.has(target)) {
          entry.inView.add(target);
          this.changed();
          // Not now: whoever put the element there may still be about to attach its listeners.
          setTimeout(() => entry.inView.has(target) && this.deliver(entry, [target], true), 50);
        }
      }
    }
  }

  /** Out of view, or gone: people scroll back, and a swapped element has a successor. @param {Entry} entry @param {Element} element */
  left(entry, element) {
    if (entry.inView.delete(element) && !entry.inView.size) {
      clearTimeout(entry.lingering);
      entry.lingering = setTimeout(() => {
        entry.lingering = undefined;
        this.tidy(entry);
      }, 1000 * this.linger);
    }
    this.tidy(entry);
  }

  // --- what this tab wants ------------------------------------------------------------------------------------------

  /** @param {string} resource @returns {Entry} */
  entry(resource) {
    const entry = this.entries.get(resource) ?? {
      resource, callbacks: new Map(), elements: new Set(), inView: new Set(), shown: new Map(), last: null, lingering: undefined,
    };
    this.entries.set(resource, entry);
    return entry;
  }

  /** @param {Entry} entry */
  tidy(entry) {
    if (!entry.callbacks.size && !entry.elements.size && !entry.lingering) this.entries.delete(entry.resource);
    this.changed();
  }

  /** The version that a callback or element shows. Who renders an element may say which one it is in its attribute.
   *  @param {Entry} entry @param {Viewer} viewer */
  shown({ shown }, viewer) {
    return Math.max(viewer instanceof Element ? declared(viewer) : 0, shown.get(viewer) ?? 0);
  }

  statement() {
    /** @type {Map<string, Want>} */
    const wants = new Map();
    for (const [resource, entry] of this.entries) {
      const { callbacks, inView, lingering, last } = entry;
      const versions = [...callbacks.keys(), ...inView].map((viewer) => this.shown(entry, viewer));
      if (!versions.length && !lingering) continue;
      const have = last?.version ?? (versions.length ? Math.min(...versions) : 0);
      wants.set(resource, { have, background: [...callbacks.values()].some(({ background }) => background) });
    }
    const again = [...this.again];
    this.again.clear();
    return { visible: document.visibilityState === "visible", wants, again };
  }

  /** Tell the hub, once for all that changes in this turn. */
  changed() {
    if (this.telling) return;
    this.telling = true;
    queueMicrotask(() => {
      this.telling = false;
      this.running?.link.tell();
    });
  }

  /** @param {string} resource @param {Callback} callback @param {{ since?: number, background?: boolean }} options */
  watch(resource, callback, { since = 0, background = false }) {
    const entry = this.entry(resource);
    entry.callbacks.set(callback, { background });
    entry.shown.set(callback, since);
    this.again.add(resource);
    this.changed();
    queueMicrotask(() => entry.callbacks.has(callback) && this.deliver(entry, [callback], true));
  }

  /** @param {string} resource @param {Callback} [callback] */
  unwatch(resource, callback) {
    const entry = this.entries.get(resource);
    if (!entry) return;
    for (const each of callback ? [callback] : [...entry.callbacks.keys()]) {
      entry.callbacks.delete(each);
      entry.shown.delete(each);
    }
    this.tidy(entry);
  }

  // --- what comes in ------------------------------------------------------------------------------------------------

  /** @param {FromHub} message */
  hear(message) {
    if (message.op === "state") return this.state(message.status);
    if (message.op !== "frame") return;
    const { op, ...detail } = message.frame;
    if (op === "update") return void this.update(message.frame);
    const entry = this.entries.get(detail.resource);
    if (entry && detail.code === "revoked") this.forget(entry);
    let taken = false;
    for (const element of [...(entry?.elements ?? []), null]) taken = !emit(element, op, detail) || taken;
    if (op === "error" && !taken) this.warn(detail);
  }

  /** A page that misspells a resource, or has no right to it, would else only stay as it is. @param {any} error */
  warn({ code, detail, resource }) {
    if ((code !== "forbidden" && code !== "unknown_resource") || this.warned.has(resource)) return;
    this.warned.add(resource);
    console.warn(`visibility: ${resource} is not watched (${code}): ${detail}`);
  }

  /** @param {Status} status */
  state(status) {
    this.status = { ...status, shared: Boolean(this.running && !this.running.link.hub) };
    document.documentElement.setAttribute("data-visibility-state", status.state);
    emit(null, "state", this.status);
  }

  /** What was shown must go: should the right come back, all of it is to be sent anew. @param {Entry} entry */
  forget(entry) {
    entry.last = null;
    entry.shown.clear();
    for (const element of entry.elements) element.removeAttribute("data-visibility-version");
  }

  /** @param {Update} update */
  async update(update) {
    const { resource, version } = update;
    const entry = this.entries.get(resource);
    if (!entry || version <= (entry.last?.version ?? 0)) return;
    entry.last = update;
    const delivered = this.deliver(entry, [...entry.callbacks.keys(), ...entry.elements], false);
    emit(null, "update", update);
    emit(null, "changed", { resource, version });
    if (!(await delivered) || document.visibilityState !== "visible") return;
    requestAnimationFrame(() => this.running?.link.port?.postMessage({ op: "ack", resource, version }));
  }

  /**
   * Hand the last update to those of the viewers that show an older version. A `late` element, one that came after the
   * update, is told `changed` only if it says which version it shows: HTML without a version, fetched because of a
   * change, would else be fetched for ever.
   * @param {Entry} entry @param {Viewer[]} viewers @param {boolean} late @returns {Promise<boolean>} whether all took it
   */
  async deliver(entry, viewers, late) {
    const update = entry.last;
    if (!update) return true;
    const { resource, version } = update;
    const behind = viewers.filter((viewer) => this.shown(entry, viewer) < version);
    const work = behind.map(async (viewer) => {
      entry.shown.set(viewer, version);
      if (typeof viewer === "function") return viewer(update);
      emit(viewer, "update", update);
      if (!late || declared(viewer)) emit(viewer, "changed", { resource, version });
    });
    const results = await Promise.allSettled(work);
    for (const result of results) if (result.status === "rejected") reportError(result.reason);
    return results.every(({ status }) => status === "fulfilled");
  }
}

/** @param {Element} element */
function declared(element) {
  return Number(element.getAttribute("data-visibility-version")) || 0;
}

/** @param {Element|null} element  null: for everybody @param {string} name @param {any} detail
 *  @returns {boolean} false where a listener of an error has called preventDefault() */
function emit(element, name, detail) {
  const target = element ?? document.body ?? document.documentElement;
  return target.dispatchEvent(
    new CustomEvent(`visibility:${name}`, { detail, bubbles: !element, cancelable: name === "error" }),
  );
}

// === The public part ==================================================================================================

const page = new Page();

/** The script tag's options. @returns {Partial<Options>|null} */
function tagged() {
  const json = document.querySelector("script[data-visibility-connect]")?.getAttribute("data-visibility-connect");
  return json == null ? null : JSON.parse(json || "{}");
}

/**
 * Connect, and watch the elements with `data-visibility`. Does nothing while connected; after `close()` or a final
 * close code it starts again.
 * @param {Partial<Options>} [options]  over the script tag's
 */
export function connect(options = {}) {
  if (page.running) return void (page.status.state === "closed" && page.running.link.open());
  const all = { ...DEFAULTS, ...tagged(), ...options };
  const url = new URL(all.url, document.baseURI);
  url.protocol = url.protocol.replace("http", "ws");
  page.start({ ...all, url: url.href });
}

/**
 * Watch a resource. The callback gets each newer version, at first the current one; if it returns a promise, the
 * version counts as shown when that is fulfilled. May be called before `connect()`.
 * @param {string} resource  like "feed:42"
 * @param {Callback} callback
 * @param {{ since?: number, background?: boolean }} [options]  since: the version that is shown already;
 *   background: go on while this tab is hidden and another one is in front
 * @returns {() => void} ends this watch
 */
export function watch(resource, callback, options = {}) {
  if (typeof resource !== "string" || !/^[^\s:]+:\S+$/.test(resource)) throw new TypeError(`not a resource: ${resource}`);
  if (typeof callback !== "function") throw new TypeError("watch() needs a callback");
  page.watch(resource, callback, options);
  return () => unwatch(resource, callback);
}

/** End the watch of one callback, or of all callbacks of a resource. @param {string} resource @param {Callback} [callback] */
export function unwatch(resource, callback) {
  page.unwatch(resource, callback);
}

/** Leave: this tab watches nothing until `connect()`. Callbacks stay registered for then. */
export function close() {
  page.stop();
}

/** The connection, as the last `visibility:state` told it. */
export function status() {
  return { ...page.status };
}

if (typeof document === "undefined") {
  const hub = new Hub();
  /** @type {any} */ (globalThis).onconnect = (/** @type {MessageEvent} */ { ports }) => hub.attach(ports[0]);
} else if ((tagged() ?? { auto: false }).auto !== false) {
  // Not before the page's other scripts had their chance to listen.
  const [timing] = /** @type {PerformanceNavigationTiming[]} */ (performance.getEntriesByType("navigation"));
  if (timing?.domContentLoadedEventStart || document.readyState === "complete") connect();
  else document.addEventListener("DOMContentLoaded", () => connect(), { once: true });
}
