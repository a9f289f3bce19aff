// Waits for a message with a library of Node.js: wait_with.js LIBRARY PORT. Prints how the wait ends.
const [, , library, port] = process.argv;
const address = { host: '127.0.0.1', port: Number(port) };

const libraries = {
  ioredis: () => {
    const Redis = require('ioredis');
    const client = new Redis({ ...address, retryStrategy: null });
    client.on('error', () => {});
    return client.blpop('mails', 0);
  },
  'node-redis': async () => {
    const { createClient } = require('redis');
    const client = createClient({ socket: { ...address, reconnectStrategy: false } });
    client.on('error', () => {});
    await client.connect();
    return client.blPop('mails', 0);
  },
  jackd: async () => {
    const Jackd = require('jackd');
    const client = new Jackd();
    await client.connect(address);
    return client.reserve();
  },
  fivebeans: () => new Promise((resolve, reject) => {
    const { client: Client } = require('fivebeans');
    const client = new Client(address.host, address.port);
    client
      .on('connect', () => client.reserve((error, id) => (error ? reject(error) : resolve(id))))
      .on('close', () => reject(new Error('close')))
      .on('error', reject)
      .connect();
  }),
};

libraries[library]()
  .then((got) => console.log('got', got))
  .catch((error) => console.log(error.name ?? 'error', error.message ?? error))
  .finally(() => process.exit());
