package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"

	"github.com/headway-go/headway/cmd/internal/cli"
	"github.com/headway-go/headway/worker"
)

// leaveUsage is what "worker leave -h" prints; testdata/leave.golden holds the same text.
const leaveUsage = `Usage: worker leave [flags]

Returns waiting tasks to the plain form that asynq has without Headway. Their max
retry is then the number of attempts that are left, and their timeout and
deadline are asynq's own. Use it when you remove Headway, or when programs
without it are to run the queued tasks. Stop every worker first. If it is
interrupted, run it again.

A task loses the number of its failures and the text of its last error.

Flags:
  -redis URL        where the tasks are. Default: REDIS_URL from the environment,
                    else the embedded server of a worker on 127.0.0.1:6390
  -queues NAME,…    the queues to change. Default: all queues
  -json             print one object a queue
  -h                print this

Exit codes: 0 done, 1 something failed, 2 bad usage, 130 interrupted.

Example:
  worker leave -redis redis://10.0.0.5:6379/0 -queues default,low
`

// leaveCommand is one run of "worker leave".
type leaveCommand struct {
	url, queues string
	json        bool
}

// newLeave returns the command "worker leave", and what it reads.
func newLeave() (*cli.Command, *leaveCommand) {
	c, l := cli.NewCommand(prog+" leave", leaveUsage), &leaveCommand{}
	c.About = "return waiting tasks to their plain asynq form"
	c.Flags.StringVar(&l.url, "redis", "", "")
	c.Flags.StringVar(&l.queues, "queues", "", "")
	c.Flags.BoolVar(&l.json, "json", false, "")
	return c, l
}

// runLeave is the program "worker leave".
func runLeave(ctx context.Context, args []string, getenv func(string) string, stdout, stderr io.Writer) int {
	c, l := newLeave()
	words, code, done := c.Parse(args, getenv, stdout, stderr)
	if done {
		return code
	}
	names, err := leaveQueues(l.queues)
	if err == nil && len(words) > 0 {
		err = cli.Errorf("worker leave -h", "unexpected argument %q: worker leave takes flags only", words[0])
	}
	if err != nil {
		c.Fail(stderr, prog, err)
		return cli.ExitUsage
	}
	url := cmp.Or(l.url, cli.EmbeddedURL)
	if err := leave(ctx, url, names, l.json, stdout); err != nil {
		if ctx.Err() != nil {
			return cli.ExitInterrupted
		}
		c.Fail(stderr, prog, explain(ctx, err, url))
		return cli.Code(err)
	}
	return cli.ExitOK
}

func leaveQueues(list string) ([]string, error) {
	if list == "" {
		return nil, nil
	}
	names := strings.Split(list, ",")
	for i, name := range names {
		names[i] = strings.TrimSpace(name)
		if !validQueue(names[i]) {
			return nil, cli.Errorf("-queues default,low", "-queues: %q is not a queue name", name)
		}
	}
	return names, nil
}

func leave(ctx context.Context, url string, queues []string, asJSON bool, stdout io.Writer) error {
	rdb, err := cli.OpenRedis(ctx, url)
	if err != nil {
		return err
	}
	defer func() { _ = rdb.Close() }() // nothing is in flight any more
	if queues, err = queuesToLeave(rdb, queues); err != nil {
		return err
	}
	for _, name := range queues {
		changed, err := worker.Detach(ctx, rdb, name)
		if werr := writeLeft(stdout, name, changed, asJSON); werr != nil {
			return errors.Join(err, werr)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// queuesToLeave refuses while workers run, and finds the queues if none is named.
func queuesToLeave(rdb redis.UniversalClient, queues []string) ([]string, error) {
	inspector := asynq.NewInspectorFromRedisClient(rdb)
	servers, err := inspector.Servers()
	if err != nil {
		return nil, err
	}
	if len(servers) > 0 {
		return nil, cli.Errorf("stop them, wait ten seconds and run worker leave again",
			"%d workers still serve these queues, the first on host %s, pid %d", len(servers), servers[0].Host, servers[0].PID)
	}
	if queues != nil {
		return queues, nil
	}
	return inspector.Queues()
}

func writeLeft(w io.Writer, queue string, changed int, asJSON bool) error {
	if asJSON {
		text, err := json.Marshal(struct {
			Queue   string `json:"queue"`
			Changed int    `json:"changed"`
		}{queue, changed})
		if err == nil {
			_, err = w.Write(cli.EscapeJSON(append(text, '\n')))
		}
		return err
	}
	_, err := fmt.Fprintf(w, "queue %s: %d tasks are in their plain form\n", cli.Quote(queue), changed)
	return err
}
