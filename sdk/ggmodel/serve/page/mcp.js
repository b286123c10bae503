// Tools of MCP servers over HTTP, as the protocol's transport "streamable HTTP" has them
// (https://modelcontextprotocol.io/specification/2025-06-18/basic/transports).

import { events } from "./api.js";

const VERSION = "2025-06-18";
const MOST = 200; // tools of a server

class McpServer {
  constructor(url) {
    Object.assign(this, { url, session: null, version: VERSION, last: 0 });
  }

  async send(message, signal) {
    const headers = {
      "Content-Type": "application/json",
      Accept: "application/json, text/event-stream",
      "MCP-Protocol-Version": this.version,
      ...(this.session && { "Mcp-Session-Id": this.session }),
    };
    const body = JSON.stringify({ jsonrpc: "2.0", ...message });
    const response = await fetch(this.url, { method: "POST", headers, body, signal });
    if (!response.ok) throw new Error(`${response.status} ${response.statusText}`);
    this.session = response.headers.get("mcp-session-id") ?? this.session;
    return response;
  }

  async ask(method, params, signal) {
    const id = ++this.last;
    const response = await this.send({ id, method, params }, signal);
    const streams = response.headers.get("content-type")?.startsWith("text/event-stream");
    for await (const one of streams ? events(response) : [await response.json()]) {
      if (one.id !== id) continue; // a notice
      if (one.error) throw new Error(one.error.message);
      return one.result;
    }
    throw new Error("its answer has no end");
  }

  /** Its tools, {name, description, inputSchema}, once it is greeted. */
  async tools() {
    const clientInfo = { name: "ggmodel", version: "0" };
    const greeted = await this.ask("initialize", { protocolVersion: VERSION, capabilities: {}, clientInfo });
    this.version = greeted.protocolVersion;
    await this.send({ method: "notifications/initialized" });
    const found = [];
    let cursor;
    do {
      const { tools, nextCursor } = await this.ask("tools/list", cursor ? { cursor } : {});
      found.push(...tools);
      cursor = nextCursor;
    } while (cursor && found.length < MOST);
    return found;
  }

  /** The text that a tool gives. */
  async call(name, args, signal) {
    const { content = [], isError } = await this.ask("tools/call", { name, arguments: args }, signal);
    const text = content.map((part) => (part.type === "text" ? part.text : `(${part.type})`)).join("\n");
    return isError ? `Error: ${text}` : text;
  }
}

/** The tools of the servers that a conversation names. */
export class Toolbox {
  constructor() {
    this.opened = new Map(); // URL → a promise of {server, tools}
    this.allowed = new Set(); // tools that may run unasked, "URL name"
  }

  /** The tools in the API's form, of URLs that white space parts. */
  async open(urls) {
    this.owners = new Map();
    for (const url of new Set(urls.split(/\s+/).filter(Boolean))) {
      if (!this.opened.has(url)) this.opened.set(url, this.connect(url));
      const { server, tools } = await this.opened.get(url);
      for (const tool of tools) {
        const other = this.owners.get(tool.name);
        if (other) throw new Error(`${other.server.url} and ${url} both have a tool ${tool.name}: leave one out.`);
        this.owners.set(tool.name, { server, tool });
      }
    }
    return [...this.owners.values()].map(({ tool: { name, description, inputSchema: parameters } }) => ({
      type: "function",
      function: { name, description, parameters },
    }));
  }

  async connect(url) {
    try {
      const server = new McpServer(url);
      return { server, tools: await server.tools() };
    } catch (error) {
      this.opened.delete(url); // the next try begins anew
      throw new Error(`The tools of ${url} cannot be had: ${error.message}. It has to be an MCP server of this machine, or of an origin that the server was started with (--mcp-origin), and to allow this page's origin.`);
    }
  }

  /** Runs a call, if `confirm` lets it; returns the text for the model. */
  async run({ name, arguments: text }, confirm, signal) {
    const owner = this.owners.get(name);
    if (!owner) return `Error: there is no tool ${name}`;
    try {
      const args = JSON.parse(text || "{}");
      const tool = `${owner.server.url} ${name}`;
      const choice = this.allowed.has(tool) ? "run" : await confirm();
      if (choice === "always") this.allowed.add(tool);
      return choice === "refuse" ? "Error: the user refused this call" : await owner.server.call(name, args, signal);
    } catch (error) {
      if (signal.aborted) throw error;
      return `Error: ${error.message}`;
    }
  }
}
