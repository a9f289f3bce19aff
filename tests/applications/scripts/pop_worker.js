// The worker of pop_worker.py, with clients of Node.js.
const readline = require('node:readline');

const [, , library, port, queue, pop, timeout] = process.argv;
const address = { host: '127.0.0.1', port: Number(port) };
const milliseconds = timeout === 'default' ? undefined : 1000 * Number(timeout);
const WAIT = 60; // seconds

// Each client is an object of functions, by the names of the steps.
const libraries = {
  ioredis: () => {
    const Redis = require('ioredis');
    const name = pop === 'wait-with-command-timeout' ? 'commandTimeout' : 'socketTimeout';
    const strict = { [name]: milliseconds, retryStrategy: () => 50, maxRetriesPerRequest: 0 };
    const client = new Redis({ ...address, ...(milliseconds ? strict : {}) });
    client.on('error', () => {});
    return {
      pop: async () => (pop === 'poll' ? client.spop(queue) : (await client.blpop(queue, WAIT))?.[1]),
      work: async (message) => { await client.ping(); await client.rpush(`${queue}:done`, message); },
      ack: () => client.call('PRESSURE.ACK', queue),
      quit: () => client.quit(),
      close: () => client.disconnect(),
    };
  },
  'node-redis': async () => {
    const { createClient } = require('redis');
    const strict = { socketTimeout: milliseconds, reconnectStrategy: () => 50 };
    const client = createClient({ socket: { ...address, ...(milliseconds ? strict : {}) } });
    client.on('error', () => {});
    await client.connect();
    return {
      pop: async () => (pop === 'poll' ? client.sPop(queue) : (await client.blPop(queue, WAIT))?.element),
      work: async (message) => { await client.ping(); await client.rPush(`${queue}:done`, message); },
      ack: () => client.sendCommand(['PRESSURE.ACK', queue]),
      quit: () => client.quit(),
      close: () => client.close(),
    };
  },
};

async function main() {
  const steps = await libraries[library]();
  let message;
  for await (const line of readline.createInterface({ input: process.stdin })) {
    const step = line.trim();
    if (step === 'fail') throw new Error('the work has failed');
    try {
      const answer = await steps[step](message);
      if (step === 'pop') {
        message = answer;
        console.log(message ? `got ${message}` : 'none');
      } else {
        console.log(step);
      }
    } catch (error) {
      console.log('error', error.name ?? 'error', error.message ?? error);
    }
  }
  process.exit(); // an open connection would keep the script alive
}

main();
