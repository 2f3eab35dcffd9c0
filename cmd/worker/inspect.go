package main

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/headway-go/headway/cmd/internal/cli"
	"github.com/headway-go/headway/queue"
	"github.com/headway-go/headway/throttle"
	"github.com/headway-go/headway/throttle/policy"
	"github.com/headway-go/headway/throttle/policystore"
	"github.com/headway-go/headway/worker/control"
)

// inspectUsage is what "worker inspect -h" prints; testdata/inspect.golden holds the
// same text.
const inspectUsage = `Usage: worker inspect [flags] scope [SCOPE]
       worker inspect [flags] task ID
       worker inspect usage SCOPE [flags]    see worker inspect usage -h

Shows which tasks wait, and changes nothing.

  scope   how many tasks of SCOPE, and of all scopes below it, wait for their
          turn, are dispatched and on their way to a worker, or are active: held
          in a worker until their start, or running. When the next task is
          expected to start, and which rule it waits for. What is used and left
          of each rule, and when it resets. What the shadow rules of SCOPE have
          left. Whether rules with hours hold now. Without SCOPE: the scopes in
          which most tasks wait, of the 10,000 first scopes of each provider
  task    the state of the task, its position in the queue of its scope, the rule
          that it waits for and its expected start. If several queues have the
          id, each task is shown

An expected start is an estimate from the limits and the tasks that wait now. A
task has none while it waits for a place under a concurrency rule, or for a rule
that is suspended (limit 0).

Flags:
  -redis URL        where the tasks are. Default: REDIS_URL from the environment,
                    else the embedded server of a worker on 127.0.0.1:6390
  -limits FILE      the limits to go by. Default: the limits in Redis
  -limit N          how many scopes to list without SCOPE, 1 to 1000. Default: 20
  -json             print one object, or one for each queue that has the task, or
                    one for each scope in which tasks wait and one for all
  -h                print this

Exit codes: 0 done, 1 something failed or there is no such task, 2 bad usage,
130 interrupted.

Examples:
  worker inspect scope
  worker inspect scope payments/acme
  worker inspect -json task inv-1
  worker inspect task -- -an-id-with-a-dash
`

const inspectHelp = "worker inspect -h"

// inspection is one run of "worker inspect".
type inspection struct {
	url, limits string
	json        bool
	what, name  string // scope or task, and which; no name for all scopes
	most        int    // of those scopes

	out     io.Writer
	meters  bool             // people look at it: draw how much of each rule is used
	now     func() time.Time // of this host: what "in 3s" counts from
	limiter *throttle.Limiter
	answers *control.Service
}

// newInspect returns the command "worker inspect", and what it reads.
func newInspect() (*cli.Command, *inspection) {
	c, i := cli.NewCommand(prog+" inspect", inspectUsage), &inspection{now: time.Now}
	c.Mixed, c.About, c.Words = true, "show who waits, for what", []string{"scope", "task"}
	c.Flags.StringVar(&i.url, "redis", "", "")
	cli.FileVar(c.Flags, &i.limits, "limits")
	c.Flags.BoolVar(&i.json, "json", false, "")
	c.Flags.IntVar(&i.most, "limit", 20, "")
	ofUsage, _ := newInspectUsage()
	c.Commands = []*cli.Command{ofUsage}
	return c, i
}

// runInspect is the program "worker inspect".
func runInspect(ctx context.Context, args []string, getenv func(string) string, stdout, stderr io.Writer) int {
	if len(args) > 0 && args[0] == "usage" {
		return runInspectUsage(ctx, args[1:], getenv, stdout, stderr)
	}
	c, i := newInspect()
	words, code, done := c.Parse(args, getenv, stdout, stderr)
	if done {
		return code
	}
	i.out, i.meters = stdout, cli.IsTerminal(stdout)
	if err := i.read(words); err != nil {
		c.Fail(stderr, prog, err)
		return cli.ExitUsage
	}
	i.url = cmp.Or(i.url, cli.EmbeddedURL)
	if err := i.run(ctx); err != nil {
		if ctx.Err() != nil {
			return cli.ExitInterrupted
		}
		c.Fail(stderr, prog, err)
		return cli.Code(err)
	}
	return cli.ExitOK
}

// read takes the words, and refuses what names nothing.
func (i *inspection) read(words []string) error {
	switch {
	case len(words) == 0:
		return cli.Errorf(inspectHelp, "nothing to inspect: name a scope or a task")
	case words[0] == "usage":
		return cli.Errorf(`worker inspect usage SCOPE [flags]`, `"usage" has flags of its own, which follow it`)
	case words[0] != "scope" && words[0] != "task":
		return cli.Errorf(inspectHelp, "%q can't be inspected: name a scope or a task", words[0])
	case i.most < 1 || i.most > mostListed:
		return cli.Errorf("-limit 20", "-limit %d is not from 1 to %d", i.most, mostListed)
	case len(words) == 1 && words[0] == "scope":
		i.what = words[0]
		return nil
	case len(words) == 1 || words[1] == "":
		return cli.Errorf(inspectHelp, "no %s given", words[0])
	case len(words) > 2:
		return cli.Errorf(inspectHelp, "one %s at a time, and %q is a second one; quote a name that has spaces", words[0], words[2])
	}
	i.what, i.name = words[0], words[1]
	if i.what == "task" {
		return nil
	}
	if _, err := policy.ParseScope(i.name); err != nil {
		return &cli.Error{What: plainly(err), Try: inspectHelp, Err: err}
	}
	return nil
}

// plainly is an error without the name of the package that it comes from.
func plainly(err error) string { return control.Plain(err) }

func (i *inspection) run(ctx context.Context) error {
	var policy *policy.Policy
	if i.limits != "" {
		var err error
		if policy, err = loadPolicy(i.limits); err != nil {
			return err
		}
	}
	rdb, err := cli.OpenRedis(ctx, i.url)
	if err != nil {
		return err
	}
	defer func() { _ = rdb.Close() }() // nothing is in flight any more
	asked := control.Config{Redis: rdb, Now: i.now}
	if policy == nil {
		if policy, err = i.published(ctx, rdb); err != nil {
			return err
		}
		asked.Store = policystore.New(rdb, policystore.Config{})
	}
	if i.limiter, err = throttle.New(rdb, policy, throttle.Config{}); err != nil {
		return err
	}
	asked.Limiter = i.limiter
	i.answers = control.New(asked)
	switch {
	case i.what == "task":
		return i.task(ctx)
	case i.name == "":
		return i.waiting(ctx)
	}
	return i.scope(ctx)
}

// published returns the policy that workers published.
func (i *inspection) published(ctx context.Context, rdb redis.UniversalClient) (*policy.Policy, error) {
	pol, err := queue.PublishedPolicy(ctx, rdb)
	switch {
	case errors.As(err, new(*policy.Error)):
		return nil, &cli.Error{
			What: plainly(err), Try: "-limits FILE, or restart the worker with the same version as this program", Err: err,
		}
	case err != nil:
		return nil, explain(ctx, err, i.url)
	case pol == nil:
		return nil, cli.Errorf("-limits FILE, with the limits that the workers run under",
			"there are no limits: -limits is not given, and no worker has published any")
	}
	return pol, nil
}

// print writes an object, or lines of a label and a text each.
func (i *inspection) print(object any, lines [][2]string) error {
	if i.json {
		return i.printObject(object)
	}
	var b bytes.Buffer
	for _, line := range lines {
		fmt.Fprintf(&b, "%-10s %s\n", line[0], cli.Escape(line[1]))
	}
	return i.write(b.Bytes())
}

func (i *inspection) printObject(object any) error {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(object); err != nil {
		return err
	}
	return i.write(cli.EscapeJSON(b.Bytes()))
}

func (i *inspection) write(text []byte) error {
	if _, err := i.out.Write(text); err != nil {
		return fmt.Errorf("cannot write the result: %w", err)
	}
	return nil
}

// start says when a task is expected to start, and what it waits for.
func (i *inspection) start(at control.Time, between control.Range, why control.Reason, rule, scope string) string {
	by := ""
	switch {
	case why == control.ReasonPaused && at.IsZero():
		return "when " + cli.Quote(scope) + " is resumed"
	case why == control.ReasonPaused:
		return i.moment(at) + ", after the pause of " + cli.Quote(scope)
	case why == control.ReasonQueuePaused:
		return "when its queue goes on: asynq has paused it"
	case why == control.ReasonUpstream:
		by = ", when its pause is over"
	case rule != "":
		by = fmt.Sprintf(", by rule %s of %s", cli.Quote(rule), cli.Quote(scope))
	}
	if at.IsZero() {
		return "unknown" + by
	}
	if !between.StartTo.IsZero() {
		return fmt.Sprintf("about %s, between %s and %s", i.moment(at), between.StartFrom, between.StartTo) + by
	}
	return i.moment(at) + by
}

// moment says when a time is, and how far away.
func (i *inspection) moment(at control.Time) string {
	return fmt.Sprintf("in %s, at %s", max(0, at.Sub(i.now())).Round(time.Millisecond), at)
}

// stamp writes a time as RFC 3339 does, with milliseconds; none is "".
func stamp(at time.Time) string { return control.At(at).String() }
