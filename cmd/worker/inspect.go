package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/headway-go/headway/cmd/internal/cli"
	"github.com/headway-go/headway/queue"
	"github.com/headway-go/headway/throttle"
	"github.com/headway-go/headway/throttle/policy"
	"github.com/headway-go/headway/throttle/policystore"
	"github.com/headway-go/headway/worker/control"
)

const (
	inspectScopeLong = `Shows how many tasks of SCOPE, and of all scopes below it, wait for their turn, are
dispatched and on their way to a worker, or are active: held in a worker until their
start, or running. When the next task is expected to start, and which rule it waits
for. What is used and left of each rule, and when it resets. Below a pool, the same of
each member, and whether a pause or a breaker holds it; SCOPE can be a member,
github/@alice. What the shadow rules of SCOPE have left. Whether rules with hours hold now.

Without SCOPE: the scopes in which most tasks wait, of the 10,000 first scopes of each
provider.

An expected start is an estimate from the limits and the tasks that wait now. A task has
none while it waits for a place under a concurrency rule, or for a rule that is
suspended (limit 0).`
	inspectTaskLong = `Shows the state of the task, its position in the queue of its scope, the rule that it
waits for and its expected start. If several queues have the id, each task is shown.`
)

// mostListed is how many scopes "worker inspect scope" lists at most.
const mostListed = 1000

// inspection is one run of "worker inspect".
type inspection struct {
	session
	limits string // file
	most   int    // scopes that are listed
	policy *policy.Policy
	asked  *control.Service
}

func newInspect() *cobra.Command {
	i := &inspection{}
	scope := &cobra.Command{
		Use: "scope [SCOPE]", Short: "Show how many tasks wait in SCOPE, and for what", Long: inspectScopeLong, Args: cli.Args(0, 1), RunE: i.over(i.scope),
		Example: "  worker inspect scope\n  worker inspect scope payments/acme",
	}
	scope.Flags().IntVar(&i.most, "limit", 20, "list `N` scopes without SCOPE, 1 to 1000")
	task := &cobra.Command{
		Use: "task ID", Short: "Show where a task stands, and what it waits for", Long: inspectTaskLong, Args: cli.Args(1, 1), RunE: i.over(i.task),
		Example: "  worker inspect -json task inv-1\n  worker inspect task -- -an-id-with-a-dash",
	}
	for _, c := range []*cobra.Command{scope, task} {
		c.Flags().StringVar(&i.limits, "limits", "", "go by the limits of `FILE`. Default: the limits in Redis")
	}
	c := cli.Group("inspect", "Show which tasks wait, for what, and which applications spent; change nothing", scope, task, newInspectUsage())
	i.flags(c)
	return c
}

// over returns a RunE that reads the limits, of a file before Redis is asked.
func (i *inspection) over(do func(ctx context.Context, words []string) error) func(*cobra.Command, []string) error {
	return func(c *cobra.Command, words []string) (err error) {
		if i.most < 1 || i.most > mostListed {
			return cli.Usage(cli.Errorf("-limit 20", "-limit %d is not from 1 to %d", i.most, mostListed))
		}
		if len(words) > 0 && c.Name() == "scope" {
			if _, err := policy.ParseScope(words[0]); err != nil {
				return cli.Usage(&cli.Error{What: plainly(err), Try: c.CommandPath() + " -h", Err: err})
			}
		}
		if i.limits != "" {
			if i.policy, err = readLimits(i.limits); err != nil {
				return err
			}
		}
		return i.online(func(ctx context.Context, words []string) error {
			cfg := control.Config{Redis: i.rdb}
			if i.policy == nil {
				if i.policy, err = i.published(ctx); err != nil {
					return err
				}
				cfg.Store = i.store()
			}
			if cfg.Limiter, err = throttle.New(i.rdb, i.policy, throttle.Config{TierOf: i.store().TierOf}); err != nil {
				return err
			}
			i.asked = control.New(cfg)
			return do(ctx, words)
		})(c, words)
	}
}

// published returns the policy that workers published.
func (i *inspection) published(ctx context.Context) (*policy.Policy, error) {
	pol, err := queue.PublishedPolicy(ctx, i.rdb)
	switch {
	case errors.As(err, new(*policy.Error)):
		return nil, &cli.Error{What: plainly(err), Try: "-limits FILE, or restart the worker with the same version as this program", Err: err}
	case err == nil && pol == nil:
		return nil, policystore.ErrNone
	}
	return pol, err
}

// print prints an object, or lines of a label and a text each.
func (i *inspection) print(object any, lines [][2]string) {
	text := make([]string, len(lines))
	for n, line := range lines {
		text[n] = fmt.Sprintf("%-10s %s", line[0], cli.Escape(line[1]))
	}
	i.out.Print(object, strings.Join(text, "\n"))
}

// startText says when a task is expected to start, and what it waits for.
func startText(at control.Time, between control.Range, why control.Reason, rule, scope string) string {
	by := ""
	switch {
	case why == control.ReasonPaused && at.IsZero():
		return "when " + cli.Quote(scope) + " is resumed"
	case why == control.ReasonPaused:
		return momentText(at) + ", after the pause of " + cli.Quote(scope)
	case why == control.ReasonQueuePaused:
		return "when its queue goes on: asynq has paused it"
	case why == control.ReasonUpstream:
		by = ", when its pause is over"
	case why == control.ReasonBreaker:
		by = ", when a call of " + cli.Quote(scope) + " succeeds: its breaker is open"
	case why == control.ReasonMember:
		by = ", with the first member of the pool at " + cli.Quote(scope) + " that has room"
	case rule != "":
		by = fmt.Sprintf(", by rule %s of %s", cli.Quote(rule), cli.Quote(scope))
	}
	if at.IsZero() {
		return "unknown" + by
	}
	if !between.StartTo.IsZero() {
		return fmt.Sprintf("about %s, between %s and %s", momentText(at), between.StartFrom, between.StartTo) + by
	}
	return momentText(at) + by
}

// momentText says when a time is, and how far away.
func momentText(at control.Time) string {
	return fmt.Sprintf("in %s, at %s", max(0, time.Until(at.Time)).Round(time.Millisecond), at)
}

func (i *inspection) task(ctx context.Context, words []string) error {
	found, err := i.asked.Task(ctx, i.actor(), words[0])
	if err != nil {
		return err
	}
	for n, r := range found {
		if n > 0 && !i.json {
			i.out.Text("")
		}
		i.print(r, i.taskLines(r))
	}
	return nil
}

// taskLines is the report of a task for people.
func (i *inspection) taskLines(r control.Task) [][2]string {
	lines := [][2]string{
		{"task", cli.Quote(r.ID)}, {"queue", cli.Quote(r.Queue)}, {"type", cli.Quote(r.Type)}, {"state", r.State},
		{"scope", scopeText(r)},
	}
	lines = append(lines, slices.Concat(pauseLines(r.Pause), userLines(r.Users))...)
	if r.Scope != "" {
		lines = append(lines, i.turnLines(r)...)
	}
	if r.NoWorker {
		lines = append(lines, [2]string{"worker", "no live one serves its queue, so that it cannot start"})
	}
	if !r.NextProcessAt.IsZero() {
		due := momentText(r.NextProcessAt)
		if r.Turn != control.TurnNone {
			due += ", unless its turn comes before"
		}
		lines = append(lines, [2]string{"due", due})
	}
	if r.LastError != "" {
		lines = append(lines, [2]string{"last", cli.Quote(r.LastError)})
	}
	if r.Error != "" && !r.Unmatched && r.Reason != control.ReasonCost {
		lines = append(lines, [2]string{"error", cli.Quote(r.Error)})
	}
	return lines
}

// scopeText says what a task spends from, and how much.
func scopeText(r control.Task) string {
	text := cli.Quote(r.Scope) + ", as a worker's Spends decided"
	switch {
	case r.Scope == "" && r.Error != "":
		return "none in its headers"
	case r.Scope == "":
		return "not known yet: no header names it, and a worker's Spends, if there is one, decides it at pick-up"
	case r.ScopeFrom == "":
		text = cli.Quote(r.Scope) + ", cost " + costText(r)
	}
	if r.Priority != 0 {
		text += fmt.Sprintf(", priority %d", r.Priority)
	}
	return text
}

// costText writes a cost as enqueue's -cost takes it.
func costText(r control.Task) string {
	if len(r.Costs) > 0 {
		return r.Costs.String()
	}
	return strconv.FormatInt(r.Cost, 10)
}

// turnLines says where a task stands, and what it waits for.
func (i *inspection) turnLines(r control.Task) [][2]string {
	switch {
	case r.Unmatched && r.Waits():
		return [][2]string{{"waits", i.advice(r.NoRule)}}
	case r.Unmatched:
		return [][2]string{{"rules", unmatchedText(r.NoRule)}}
	case r.Turn == control.TurnDispatched:
		return [][2]string{{"turn", "dispatched, on its way to a worker"}}
	case r.Turn == control.TurnWaiting:
		return [][2]string{
			{"position", fmt.Sprintf("%d in the queue of its scope", r.Position)}, {"start", startText(r.Start, r.Range, r.Reason, r.Rule, r.RuleScope)},
		}
	}
	return [][2]string{{"turn", noTurn(r)}}
}

// advice is what becomes of a task that no rule matches, and what to do.
func (i *inspection) advice(n control.NoRule) string {
	if i.policy.Unmatched() == policy.UnmatchedFail {
		return unmatchedText(n) + "; under unmatched: fail it fails when a worker picks it up next, unless a rule is added"
	}
	return unmatchedText(n) + "; add a rule, or delete the task"
}

// noTurn says why a task has no place in a line.
func noTurn(r control.Task) string {
	if r.Reason == control.ReasonCost {
		return "none until the limits change: it costs too much now. " + r.Error
	}
	switch r.State {
	case "active":
		return "with a worker, held until its start or running"
	case "pending":
		return "none yet; a worker takes the task next"
	}
	return "does not wait for one"
}
