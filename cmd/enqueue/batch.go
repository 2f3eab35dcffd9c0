package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"iter"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/headway-go/headway/cmd/internal/cli"
	"github.com/headway-go/headway/queue"
	"github.com/headway-go/headway/throttle"
	"github.com/headway-go/headway/worker/control"
)

const (
	batchExample    = "enqueue batch tasks.ndjson, or enqueue batch - for standard input"
	defaultRemember = 24 * time.Hour
)

type batchFlags struct {
	target
	command  *cli.Command
	set      *flag.FlagSet
	remember time.Duration
	dryRun   bool
	starts   bool
}

func newBatchFlags(name string) *batchFlags {
	command := cli.NewCommand(name, usageBatch)
	command.About, command.Files = "enqueue the tasks of a file", true
	f := &batchFlags{command: command, set: command.Flags, remember: defaultRemember}
	f.register(f.set)
	duration(f.set, "remember", &f.remember)
	f.set.BoolVar(&f.dryRun, "dry-run", false, "")
	f.set.BoolVar(&f.starts, "starts", false, "")
	return f
}

// batch enqueues the tasks of a file.
func (c *command) batch(ctx context.Context, args []string) int {
	f := newBatchFlags(c.name)
	c.typed = f.command
	if _, code, done := f.command.Parse(args, c.getenv, c.stdout, c.stderr); done {
		return code
	}
	path, err := argument(f.set, "FILE", batchExample)
	if err != nil {
		return c.usageError(err)
	}
	if f.starts && !f.dryRun {
		return c.usageError(errors.New("-starts is for -dry-run, which forecasts the starts; -json names the start of each task that is enqueued"))
	}
	src, err := c.openSource(ctx, path)
	if err != nil {
		return c.fail(err)
	}
	defer src.close()
	rdb, client, err := c.open(ctx, &f.target)
	if err != nil {
		if ctx.Err() != nil {
			return c.interrupted(ctx, "; nothing was enqueued", "")
		}
		return c.fail(err)
	}
	defer func() { _ = rdb.Close() }()

	report := newReport(c.stdout, c.stderr, f.json, src)
	report.dry, report.apps.policy, report.timeouts.most, report.warns = f.dryRun, c.policy, f.maxTimeout, c.name+": "
	entries := remembered(queue.NewReader(src).All(), f.remember)
	if f.dryRun {
		return c.forecast(ctx, f, rdb, client, entries, report)
	}
	stop := report.start()
	var broken queue.Result // the first that Redis failed
	sum, err := client.EnqueueBatch(ctx, entries, func(r queue.Result) {
		if r.State == queue.Failed {
			r.Err = cli.Explain(r.Err, f.redis)
			if broken.Err == nil {
				broken = r
				src.end() // it may be waiting for input
			}
		}
		report.result(r)
	})
	stop()
	interrupted := err != nil && ctx.Err() != nil && broken.Err == nil
	werr := report.finish(sum, interrupted)
	switch {
	case interrupted:
		return c.interrupted(ctx, fmt.Sprintf("; %d lines were done", sum.Total()), again(sum))
	case broken.Err != nil:
		return c.fail(stopped(broken, sum))
	case err != nil:
		return c.fail(explainFile("the tasks", err))
	case werr != nil:
		return c.fail(fmt.Errorf("cannot write the results: %w", werr))
	case sum.Invalid > 0:
		return cli.ExitFailed
	}
	return cli.ExitOK
}

// forecast prints what enqueuing would do.
func (c *command) forecast(ctx context.Context, f *batchFlags, rdb redis.UniversalClient, client *queue.Client, entries iter.Seq[queue.Entry], report *report) int {
	report.starts = f.starts
	if f.starts || cli.IsTerminal(c.stdout) {
		report.plot = newStartPlot(time.Now())
	}
	stop := report.start()
	sum, err := client.Forecast(ctx, entries, report.result)
	stop()
	if err == nil { // without an answer, nothing is said of what is not known
		report.unserved, _ = control.Unserved(ctx, rdb, report.queues)
	}
	interrupted := err != nil && ctx.Err() != nil
	werr := report.finish(sum, interrupted)
	switch {
	case interrupted:
		return c.interrupted(ctx, "; nothing was enqueued", "")
	case errors.Is(err, throttle.ErrUnavailable):
		return c.fail(cli.Explain(err, f.redis))
	case err != nil:
		return c.fail(explainFile("the tasks", err))
	case werr != nil:
		return c.fail(fmt.Errorf("cannot write the results: %w", werr))
	case sum.Invalid > 0:
		return cli.ExitFailed
	}
	return cli.ExitOK
}

// remembered gives every task the same Remember, which is no field of a line.
func remembered(entries iter.Seq[queue.Entry], remember time.Duration) iter.Seq[queue.Entry] {
	return func(yield func(queue.Entry) bool) {
		for e := range entries {
			e.Task.Remember = remember
			if !yield(e) {
				return
			}
		}
	}
}

// stopped says which line Redis failed at, why, and how to go on.
func stopped(broken queue.Result, sum queue.Summary) error {
	what, try := broken.Err.Error(), ""
	if told, ok := errors.AsType[*cli.Error](broken.Err); ok {
		what, try = told.What, told.Try+"\n"
	}
	return &cli.Error{
		What: fmt.Sprintf("stopped at line %d: %s", broken.Line, what),
		Try:  try + again(sum),
		Err:  broken.Err,
	}
}

// again says what giving the same lines once more would do.
func again(sum queue.Summary) string {
	const skip = "run it again: tasks that are enqueued already are reported as duplicates and left alone"
	if sum.Random == 0 {
		return skip
	}
	return fmt.Sprintf("%s; but %d enqueued lines have no id and would be enqueued twice: remove them, and give every line an id", skip, sum.Random)
}
