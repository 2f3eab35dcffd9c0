package main

import (
	"context"
	"fmt"
	"slices"
	"strconv"

	"github.com/headway-go/headway/cmd/internal/cli"
	"github.com/headway-go/headway/throttle/policy"
	"github.com/headway-go/headway/worker/control"
)

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
