package main

// A test runs the examples of these texts, and compares the flags and defaults
// that they name with those of the program.

const usage = `enqueue puts tasks into queues. Workers run them under their limits.

Usage:
  enqueue http  [flags] -scope SCOPE URL    one outbound HTTP request
  enqueue batch [flags] FILE                a file of tasks, one JSON object a line
  enqueue schedules [flags] FILE            show when recurring tasks come due
  enqueue completion bash | zsh | fish      complete commands and flags
  enqueue -version                          print the version

Each command has its own help: enqueue http -h, enqueue batch -h,
enqueue schedules -h.

Examples:
  enqueue http -scope payments/acme https://api.example.com/ping
  enqueue batch tasks.ndjson
  generate-tasks | enqueue batch -
  enqueue schedules schedules.yaml

Results go to standard output, everything else to standard error. Exit codes:
0 done, 1 something failed, 2 bad usage, 130 interrupted. If $TRACEPARENT is set,
and $TRACESTATE, tasks carry this W3C trace context.
`

const usageHTTP = `enqueue http enqueues one outbound HTTP request. A worker sends it when the
limits of its scope allow.

Usage:
  enqueue http [flags] -scope SCOPE URL

What to send:
  -method M         request method (default GET): GET, HEAD, POST, PUT, PATCH, DELETE, OPTIONS,
                    or one that -allow-method names
  -allow-method M   another method, such as PROPFIND, that the workers allow by their own
                    -allow-method; may be given more than once
  -header "K: V"    a request header; may be given more than once
  -body B           request body; @FILE reads it from a file
  -timeout D        how long one run may take from its start (default 30s);
                    waiting for a turn does not count
  -within SCOPE     refuse tasks that do not spend from SCOPE or below it; use it for tasks from
                    others. Ids belong to SCOPE: inv-1 becomes SCOPE//inv-1
  -max-priority N   the highest priority within SCOPE (default 0)
  -max-timeout D    the workers' -max-timeout, after which they end a run: warn of a longer
                    -timeout (default 10m)

What it spends, and when:
  -scope SCOPE      the path it spends from, such as payments/acme/refunds; required
  -cost N           units it takes under each limit (default 1), or by unit:
                    requests=1,tokens=1500
  -priority N       of the tasks of a scope that wait in its queue, the highest goes first: from
                    -1000000 to 1000000 (default 0)
  -delay D          do not start before D from now (default 0s)
  -deadline TIME    do not start after TIME, such as 2030-01-31T12:00:00Z (default none)
  -max-wait D       wait for limits for D at most, then do what the worker's -patience says
                    (default 0s: as long as it takes)
  -max-retry N      retries after failures; waiting for a limit is no failure (default 25)

Where to put it:
  -queue NAME       queue (default default)
  -id ID            name of the task within its queue (default a random one). If the id
                    is taken, enqueue reports a duplicate and changes nothing
  -app NAME         who enqueues, for worker inspect usage (default none)
  -remember D       how long the id stays taken after success (default 24h)
  -redis URL        Redis (default $REDIS_URL, else redis://127.0.0.1:6390, where a
                    worker's embedded server is)
  -limits FILE      check the scope and the cost against this limits.yaml, and give the task
                    its turn by it (default: the limits that workers publish in Redis)
  -json             print the result as a JSON object: id, queue, state (enqueued,
                    duplicate, invalid, failed), start (expected; absent if it is not
                    known), start_from and start_to (its range, where it rests on how long
                    runs take), reason, rule and rule_scope (what it waits for), error

D is a duration: 500ms, 90s, 1h30m, 30d.

Examples:
  enqueue http -scope payments/acme https://api.example.com/ping
  enqueue http -scope payments/acme -id inv-1 -method POST -body '{"amount":100}' https://api.example.com/charge
  enqueue http -scope search/plan -cost 5 -delay 10m -header "X-Tenant: acme" https://api.example.com/search
`

const usageBatch = `enqueue batch enqueues the tasks of a file, one JSON object a line. It reports a
bad line with its number, and enqueues the others. You can enqueue a file again:
a task whose id is taken is reported as a duplicate and left alone. At the end it
prints when all tasks are expected to have started, and which rule they wait for.

Usage:
  enqueue batch [flags] FILE        FILE may be - for standard input

Flags:
  -app NAME         who enqueues, for worker inspect usage (default none)
  -remember D       how long an id stays taken after its task succeeded (default 24h)
  -redis URL        Redis (default $REDIS_URL, else redis://127.0.0.1:6390, where a
                    worker's embedded server is)
  -limits FILE      check scopes and costs against this limits.yaml, and give tasks
                    their turns by it (default: the limits that workers publish in Redis)
  -allow-method M   another method of http requests, such as PROPFIND, that the workers allow
                    by their own -allow-method; may be given more than once
  -within SCOPE     refuse tasks that do not spend from SCOPE or below it; use it for tasks from
                    others. Ids belong to SCOPE: inv-1 becomes SCOPE//inv-1
  -max-priority N   the highest priority within SCOPE (default 0)
  -max-timeout D    the workers' -max-timeout, after which they end a run: warn of the first
                    task with a longer timeout (default 10m)
  -json             print a JSON object for each line of FILE: line, id, queue, state
                    (enqueued, duplicate, invalid, failed), start (expected; absent if it
                    is not known), error; and a last one with "summary": true, lines,
                    enqueued, duplicate, invalid, failed, random_ids (enqueued lines
                    without an id), unknown_starts, done_at (the latest start), done_from
                    and done_to (its range, where it rests on how long runs take),
                    bound_scope and bound_rule (the rule that this task waits for),
                    interrupted, elapsed_ms
  -dry-run          enqueue nothing: check each line, and forecast the starts from what the
                    limits have left and which tasks wait now. It does not check whether
                    ids are taken in Redis. The state of a good line is valid. An object
                    also has expires (deadline or max_wait) if that ends before the start,
                    the last one expiring (how many lines do), and paused_scope and
                    paused_until if a scope is paused. A terminal also gets a drawing
  -starts           with -dry-run: print the expected start of each line, and the drawing

A line:
  {"type":"http","id":"inv-1","scope":"payments/acme","http":{"method":"POST","url":"https://api.example.com/charge","headers":{"X-Tenant":"acme"},"body":"{\"amount\":100}"}}

  type      "http", or a type that a Go program has registered; required
  scope     the path it spends from; required
  http      of type "http": url (required), method (default GET), headers, body
  payload   of other types: any JSON value, handed to the handler as it stands
  id        default a random one        cost      whole number (default 1)
  queue     (default default)           max_retry whole number (default 25)
  delay     duration (default 0s)       timeout   duration (http: default 30s)
  deadline  RFC 3339 (default none)     priority  whole number, higher first (default 0)
  max_wait  duration (default 0s: waits for limits as long as it takes; worker -patience)

  A cost may also be by unit: {"requests":1,"tokens":1500}. Without requests they are 1.

Examples:
  enqueue batch tasks.ndjson
  enqueue batch -limits limits.yaml -json tasks.ndjson
  enqueue batch -dry-run tasks.ndjson
  generate-tasks | enqueue batch -remember 7d -

The first interrupt stops reading and finishes the lines that were read. A second
one ends at once.
`

const usageSchedules = `enqueue schedules checks a file of recurring tasks and shows the next runs of each.
It enqueues nothing and needs no Redis. worker -schedules FILE enqueues them.

Usage:
  enqueue schedules [flags] FILE        FILE may be - for standard input

Flags:
  -n N              how many runs of each schedule (default 5)
  -from TIME        runs after TIME, such as 2030-01-31T12:00:00Z (default now)
  -allow-method M   another method of http requests, such as PROPFIND, that the workers allow
                    by their own -allow-method; may be given more than once
  -json             print a JSON object for each run: schedule, at (in the schedule's
                    zone), utc, jittered (when its task may start), task (as a line
                    that enqueue batch reads)

A schedule:
  schedules:
    nightly-report:                 # its name, 1 to 128 bytes
      cron: "0 6 * * 1-5"           # minute, hour, day of month, month, day of week;
                                    # or @yearly, @monthly, @weekly, @daily, @hourly
      timezone: America/Los_Angeles # (default UTC)
      jitter: 5m                    # delay each run by up to 5m, in whole seconds (default 0)
      catch_up: last                # missed runs: none, last, all (default last)
      task:                         # as a line of enqueue batch, without id, delay
        type: http                  # and deadline
        scope: payments/acme
        http: {method: POST, url: "https://api.example.com/report"}

When clocks change, they skip an hour or show one twice. A schedule that names its
hours still runs once a day. One whose hour begins with * runs each real hour.

Examples:
  enqueue schedules schedules.yaml
  enqueue schedules -n 3 -from 2026-03-07T00:00:00Z -json schedules.yaml
`
