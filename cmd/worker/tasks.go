package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/headway-go/headway/cmd/internal/cli"
	"github.com/headway-go/headway/worker/control"
	"github.com/headway-go/headway/worker/waiting"
)

const tasksLong = `Changes tasks that wait for their limits. No limit is exceeded, and no task is lost or
started twice: a task that was granted its start, or that a worker has, is left as it is.

Tasks are named by their ids, or by -scope, which means all that wait in SCOPE and below
it: payments/acme, or payments/* for each name. The exit code is 1 also if a task was
left as it is (by clear: still waits).`

// usualLimit is how many tasks a call changes at most unless -limit says otherwise: a minute's work.
const usualLimit = 10_000

// tasksCommand is one run of "worker tasks".
type tasksCommand struct {
	session
	change control.TaskChange
	dry    bool
}

func newTasks(getenv func(string) string) *cobra.Command {
	t := &tasksCommand{}
	run := t.verb(getenv, "run [ID…]", "Start tasks next, as soon as the limits allow")
	run.Long = `Starts tasks next, as soon as the limits allow: before all that wait, but behind those
that were put there before. A task that failed for good, and is archived, runs again.`
	move := t.verb(getenv, "move -to SCOPE [ID…]", "Have tasks spend from another scope, at the end of its queue")
	move.Flags().StringVar(&t.change.To, "to", "", "the new `SCOPE`")
	priority := t.verb(getenv, "priority -set N [ID…]", "Change the priority of tasks, which go behind those that have it already")
	priority.Flags().IntVar(&t.change.Priority, "set", 0, "the new priority `N`, up to 1000000 either way. A higher one goes first")
	_, _ = move.MarkFlagRequired("to"), priority.MarkFlagRequired("set") // both were added above
	cancel := t.verb(getenv, "cancel [ID…]", "Delete tasks")
	clearing := &cobra.Command{
		Use: "clear SCOPE", Short: "Delete all tasks that wait in SCOPE and below it", Args: cli.Args(1, 1),
		Long: `Deletes all tasks that wait in SCOPE and below it, after printing how many. Tasks that
run or were granted their start go on, and tasks that are enqueued meanwhile stay.`,
		RunE: t.online(func(ctx context.Context, words []string) error {
			t.change.Verb, t.change.Scope, t.change.Most = control.VerbClear, words[0], usualLimit
			return t.do(ctx, t.clear)
		}),
	}
	t.changeFlags(clearing, getenv)
	history := &cobra.Command{
		Use: "history", Short: "Print the last 1,000 changes of tasks and their authors, newest first", Args: cli.Args(0, 0), RunE: t.online(t.history),
	}
	group := cli.Group("tasks", "Start next, move or cancel tasks that wait", run, move, cancel, clearing, priority, history)
	group.Long = tasksLong
	group.Example = `  worker tasks cancel -scope payments/acme -dry-run
  worker tasks clear payments/acme -reason "wrong batch"
  worker tasks run inv-1
  worker tasks move -to payments/bulk -scope payments/acme -queue low`
	t.flags(group)
	return group
}

// verb returns a command that changes tasks named by their ids or by their scope.
func (t *tasksCommand) verb(getenv func(string) string, use, short string) *cobra.Command {
	c := &cobra.Command{Use: use, Short: short}
	c.RunE = func(c *cobra.Command, words []string) error {
		t.change.Verb, t.change.IDs = control.Verb(c.Name()), nil
		for _, id := range words {
			t.change.IDs = append(t.change.IDs, control.TaskID{ID: id})
		}
		if err := t.check(); err != nil {
			return cli.Usage(err)
		}
		return t.online(func(ctx context.Context, _ []string) error { return t.do(ctx, t.apply) })(c, words)
	}
	fs := c.Flags()
	fs.StringVar(&t.change.Scope, "scope", "", "all that wait in `SCOPE` and below it, instead of ids")
	fs.StringVar(&t.change.Queue, "queue", "", "only tasks of this asynq queue, a `NAME`")
	fs.StringVar(&t.change.Type, "type", "", "with -scope: only tasks of this `TYPE`")
	fs.IntVar(&t.change.Most, "limit", usualLimit, "change `N` tasks at most, 1 to 100000")
	t.changeFlags(c, getenv)
	return c
}

func (t *tasksCommand) changeFlags(c *cobra.Command, getenv func(string) string) {
	t.asFlag(c, getenv)
	c.Flags().StringVar(&t.change.Reason, "reason", "", "why, for the history: a `TEXT`")
	c.Flags().BoolVar(&t.dry, "dry-run", false, "print how many tasks it would be, and change none")
}

// check refuses what does not go together.
func (t *tasksCommand) check() error {
	const help = "worker tasks -h"
	switch c := t.change; {
	case len(c.IDs) == 0 && c.Scope == "":
		return cli.Errorf(fmt.Sprintf("worker tasks %s -scope payments/acme -dry-run", c.Verb), "no task is named, and no -scope")
	case len(c.IDs) > 0 && c.Scope != "":
		return cli.Errorf(help, "tasks are named by their ids or by -scope, not by both")
	case len(c.IDs) > 0 && c.Type != "":
		return cli.Errorf(help, "-type goes with -scope, not with ids")
	case c.Most < 1 || c.Most > control.MostTasks:
		return cli.Errorf("-limit 100", "-limit %d is not from 1 to %d", c.Most, control.MostTasks)
	}
	return nil
}

// do makes a change, or with -dry-run counts the tasks that it would change.
func (t *tasksCommand) do(ctx context.Context, change func(context.Context, *control.Service) error) error {
	service, err := t.service(ctx)
	if err != nil {
		return err
	}
	if !t.dry {
		return change(ctx, service)
	}
	n, err := service.Count(ctx, t.actor(), t.change)
	if err != nil {
		return err
	}
	t.out.Print(tasksReport{Tasks: n.Tasks, DryRun: true, More: n.More}, "dry run: it would be "+countText(n)+"; nothing was changed")
	return nil
}

func countText(n control.TaskCount) string {
	text := cli.Count(int(n.Tasks), "task", "tasks")
	if n.More {
		return "at least " + text
	}
	return text
}

func (t *tasksCommand) apply(ctx context.Context, service *control.Service) error {
	done, err := service.ApplyTasks(ctx, t.actor(), t.change)
	t.printTasks(done.Tasks)
	t.printSum(done, len(done.Tasks))
	if err == nil && len(done.Left) > 0 {
		return cli.ErrPrinted
	}
	return err
}

// clear prints how many tasks wait in a scope and below it, and cancels them in steps until none is left of
// those that waited then.
func (t *tasksCommand) clear(ctx context.Context, service *control.Service) error {
	n, err := service.Count(ctx, t.actor(), t.change)
	if err != nil {
		return err
	}
	_, _ = fmt.Fprintf(t.errs, "worker tasks clear: cancelling %s of %s and below it\n", countText(n), cli.Quote(t.change.Scope))
	t.change.Before = n.At
	all, tasks := control.TasksDone{Left: map[control.Outcome]int{}}, 0
	for {
		var done control.TasksDone
		done, err = service.ApplyTasks(ctx, t.actor(), t.change)
		t.printTasks(done.Tasks)
		all.Changed, all.More, tasks = all.Changed+done.Changed, done.More, tasks+len(done.Tasks)
		for why, n := range done.Left {
			all.Left[why] += n
		}
		if err != nil || done.Changed == 0 { // a queue that moved up during a step is found by the next
			break
		}
	}
	t.printSum(all, tasks)
	if err == nil && all.More {
		err = cli.ErrPrinted
	}
	return errors.Join(ctx.Err(), err)
}

func (t *tasksCommand) history(ctx context.Context, _ []string) error {
	service, err := t.service(ctx)
	if err != nil {
		return err
	}
	all, err := service.AllActions(ctx)
	if err != nil {
		return err
	}
	for _, a := range service.VisibleActions(t.actor(), all) {
		t.out.Print(actionReport{control.At(a.At), a}, actionLine(a))
	}
	return nil
}

// actionReport is an object of "worker tasks history"; docs/json.md has its fields.
type actionReport struct {
	At control.Time `json:"at"`
	control.Action
}

// actionLine is a change of tasks in one line.
func actionLine(a control.Action) string {
	text := fmt.Sprintf("%s  %s  %s %s", control.At(a.At), a.By, a.Verb, cli.Count(a.Changed, "task", "tasks"))
	switch {
	case a.Scope != "":
		text += " of " + cli.Quote(a.Scope)
	case len(a.TaskIDs) > 0:
		text += ": " + cli.Quote(strings.Join(a.TaskIDs, " "))
		if len(a.Scopes) > 0 {
			text += " of " + cli.Quote(strings.Join(a.Scopes, " "))
		}
	}
	for _, part := range [][2]string{{" in queue ", a.Queue}, {" of type ", a.Type}, {" to ", a.To}} {
		if part[1] != "" {
			text += part[0] + cli.Quote(part[1])
		}
	}
	if a.Left > 0 {
		text += fmt.Sprintf(", %d left as they were", a.Left)
	}
	if a.Reason != "" {
		text += fmt.Sprintf(" (%s)", a.Reason)
	}
	return text
}

// tasksReport is the last object of "worker tasks"; docs/json.md has its fields.
type tasksReport struct {
	Tasks   int64 `json:"tasks"`
	Changed int   `json:"changed"`
	DryRun  bool  `json:"dry_run,omitempty"`
	More    bool  `json:"more,omitempty"`
}

// leftWords say why a task was left as it is.
var leftWords = map[waiting.Outcome]string{
	waiting.Gone: "gone meanwhile", waiting.Active: "with a worker", waiting.Dispatched: "granted their starts already",
	waiting.Pending: "next to be taken by a worker", waiting.Ended: "ended", waiting.NoScope: "without a scope in their headers",
}

var doneWords = map[control.Verb]string{
	control.VerbRun: "to start next", control.VerbMove: "moved", control.VerbCancel: "cancelled", control.VerbClear: "cancelled", control.VerbPriority: "changed",
}

// printTasks prints an object for each task, for programs.
func (t *tasksCommand) printTasks(tasks []control.TaskDone) {
	if !t.json {
		return
	}
	for _, task := range tasks {
		t.out.Print(task, "")
	}
}

// printSum prints what became of some tasks, all together.
func (t *tasksCommand) printSum(done control.TasksDone, tasks int) {
	parts := []string{cli.Count(done.Changed, "task", "tasks") + " " + doneWords[t.change.Verb]}
	for _, why := range slices.Sorted(maps.Keys(done.Left)) {
		parts = append(parts, fmt.Sprintf("%d left: %s", done.Left[why], leftWords[why]))
	}
	if done.More {
		parts = append(parts, "more wait; run it again")
	}
	t.out.Print(tasksReport{Tasks: int64(tasks), Changed: done.Changed, More: done.More}, strings.Join(parts, "; "))
}
