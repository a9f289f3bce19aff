<?php
// What the jobs of applications in PHP do.

/** End the job when the folder $HELD has no file of its name. */
function finish_work(string $word): void
{
    while (file_exists(getenv('HELD') . "/$word")) {
        usleep(10000);
        clearstatcache();
    }
    echo "sent $word\n";
}
