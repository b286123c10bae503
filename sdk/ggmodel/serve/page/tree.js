// Versions of messages. The messages of a conversation are a tree: each has an {id} and a {parent}, null at
// the beginning. Those on the way to the conversation's {leaf} are shown; versions have the same parent.

/** Letters that no other message or conversation has. */
export const newId = () => Array.from(crypto.getRandomValues(new Uint32Array(4)), (x) => x.toString(36)).join("");

/** Gives the messages of a conversation that was a list their places in a tree. */
export function grown(conversation) {
  let { leaf = null } = conversation;
  for (const message of conversation.messages.filter(({ id }) => !id)) {
    Object.assign(message, { id: newId(), parent: leaf });
    leaf = message.id;
  }
  return Object.assign(conversation, { leaf });
}

/** The messages from the first to one of them, the one that is last now if none is named. */
export function path({ messages, leaf }, last = leaf) {
  const byId = new Map(messages.map((one) => [one.id, one]));
  const found = [];
  for (let one = byId.get(last); one; one = byId.get(one.parent)) found.push(one);
  return found.reverse();
}

/** A message and its other versions, in the order in which they were made. */
export const versions = ({ messages }, { parent }) => messages.filter((one) => one.parent === parent);

/** Adds a message behind another one, the last if none is named; it becomes the last. */
export function add(conversation, message, parent = conversation.leaf) {
  const added = { ...message, id: newId(), parent };
  conversation.messages.push(added);
  conversation.leaf = added.id;
  return added;
}

/** Shows another version of a message, with what was said after it latest. */
export function choose(conversation, version) {
  let last = version;
  for (let next = version; next; next = conversation.messages.findLast(({ parent }) => parent === last.id)) last = next;
  conversation.leaf = last.id;
}
