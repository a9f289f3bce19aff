// What the jobs of all applications do.
const fs = require('fs');

exports.work = (word) => fs.appendFileSync(process.env.DONE, `${word}\n`);
