// BullMQ: `work` runs a worker, `put WORD …` puts jobs.
const { Queue, Worker } = require('bullmq');
const { work } = require('./work');

const connection = { host: '127.0.0.1', port: Number(process.env.QUEUE_PORT) };
const [, , action, ...words] = process.argv;
if (action === 'work') {
  const worker = new Worker('jobs', async (job) => work(job.data.word), { connection });
  worker.on('error', (error) => console.error(error.message));
} else {
  const queue = new Queue('jobs', { connection });
  Promise.all(words.map((word) => queue.add('run', { word }))).then(() => process.exit());
}
