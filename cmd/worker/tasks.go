package main

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"

	"github.com/headway-go/headway/cmd/internal/cli"
	"github.com/headway-go/headway/throttle/policy"
	"github.com/headway-go/headway/throttle/policystore"
	"github.com/headway-go/headway/worker/control"
	"github.com/headway-go/headway/worker/waiting"
)

// tasksUsage is what "worker tasks -h" prints; testdata/tasks.golden holds the same text.
const tasksUsage = `Usage: worker tasks run ID… | -scope SCOPE [flags]
       worker tasks move -to SCOPE ID… | -scope SCOPE [flags]
       worker tasks cancel ID… | -scope SCOPE [flags]
       worker tasks clear SCOPE [flags]
       worker tasks priority -set N ID… | -scope SCOPE [flags]
       worker tasks history [-redis URL] [-json]

Changes tasks that wait for their limits. No limit is exceeded, and no task is lost
or started twice: a task that was granted its start, or that a worker has, is left
as it is.

  run       start them next, as soon as the limits allow: before all that wait, but
            behind those that were put there before. A task that failed for good, and
            is archived, runs again
  move      have them spend from another scope, at the end of its queue
  cancel    delete them
  clear     delete all that wait in SCOPE and below it, after printing how many. Tasks
            that run or were granted their start go on, and tasks that are enqueued
            meanwhile stay
  priority  change their priority. They go behind those that have it already
  history   print who changed tasks, newest first: the last 1,000 such changes

Flags:
  -redis URL        where the tasks are. Default: REDIS_URL from the environment,
                    else the embedded server of a worker on 127.0.0.1:6390
  -scope SCOPE      all that wait in SCOPE and below it, instead of IDs:
                    payments/acme, or payments/* for each name
  -queue NAME       only tasks of this asynq queue
  -type TYPE        with -scope: only tasks of this type
  -to SCOPE         of move: the new scope
  -set N            of priority: the new one, up to 1000000 either way. A higher one
                    goes first
  -limit N          change N tasks at most, 1 to 100000. Default: 10000. clear goes on
                    until none is left
  -dry-run          print how many tasks it would be, and change none
  -as NAME          the author, for the history. Default: the user's name
  -reason TEXT      why, for the history
  -json             print an object for each task, and one for all
  -h                print this

Exit codes: 0 done, 1 something failed or a task was left as it is (by clear: still
waits), 2 bad usage, 130 interrupted.

Examples:
  worker tasks cancel -scope payments/acme -dry-run
  worker tasks clear payments/acme -reason "wrong batch"
  worker tasks run inv-1
  worker tasks move -to payments/bulk -scope payments/acme -queue low
`

const tasksHelp = "worker tasks -h"

// tasksVerbs has the flag that only one verb takes, empty for none.
var tasksVerbs = map[string]string{"run": "", "move": "to", "cancel": "", tasksClear: "", "priority": "set", tasksHistory: ""}

// tasksHistory is the verb that changes nothing, and tasksClear the one that takes a scope as its word.
const (
	tasksHistory = "history"
	tasksClear   = string(control.VerbClear)
)

// usualLimit is how many tasks a call changes at most unless -limit says otherwise: a minute's work.
const usualLimit = 10_000

// tasksCommand is one run of "worker tasks".
type tasksCommand struct {
	url    string
	as     string
	change control.TaskChange
	limit  int
	dry    bool
	json   bool

	out  io.Writer
	errs io.Writer
}

// newTasks returns the command "worker tasks", and what it reads.
func newTasks() (*cli.Command, *tasksCommand) {
	all, c := cli.NewCommand(prog+" tasks", tasksUsage), &tasksCommand{}
	all.Mixed, all.About = true, "start next, move or cancel tasks that wait"
	fs := all.Flags
	fs.StringVar(&c.url, "redis", "", "")
	fs.StringVar(&c.change.Scope, "scope", "", "")
	fs.StringVar(&c.change.Queue, "queue", "", "")
	fs.StringVar(&c.change.Type, "type", "", "")
	fs.StringVar(&c.change.To, "to", "", "")
	fs.IntVar(&c.change.Priority, "set", 0, "")
	fs.IntVar(&c.limit, "limit", usualLimit, "")
	fs.BoolVar(&c.dry, "dry-run", false, "")
	fs.StringVar(&c.as, "as", "", "")
	fs.StringVar(&c.change.Reason, "reason", "", "")
	fs.BoolVar(&c.json, "json", false, "")
	for _, verb := range slices.Sorted(maps.Keys(tasksVerbs)) {
		one := cli.NewCommand(all.Name+" "+verb, all.Usage)
		one.About = cli.AboutWord(all.Usage, verb)
		fs.VisitAll(func(f *flag.Flag) {
			if takesTaskFlag(verb, f.Name) {
				one.Flags.Var(f.Value, f.Name, "")
			}
		})
		all.Commands = append(all.Commands, one)
	}
	return all, c
}

func takesTaskFlag(verb, name string) bool {
	switch verb {
	case tasksHistory:
		return name == "redis" || name == "json"
	case tasksClear:
		return slices.Contains([]string{"redis", "dry-run", "as", "reason", "json"}, name)
	}
	return name != "to" && name != "set" || tasksVerbs[verb] == name
}

// runTasks is the program "worker tasks".
func runTasks(ctx context.Context, args []string, getenv func(string) string, stdout, stderr io.Writer) int {
	all, c := newTasks()
	words, code, done := all.Parse(args, getenv, stdout, stderr)
	if done {
		return code
	}
	c.out, c.errs = stdout, stderr
	if err := c.read(words, all.Flags); err != nil {
		all.Fail(stderr, prog, err)
		return cli.ExitUsage
	}
	c.as, c.url = cmp.Or(c.as, userName(getenv)), cmp.Or(c.url, cli.EmbeddedURL)
	if err := c.run(ctx); err != nil {
		if ctx.Err() != nil {
			return cli.ExitInterrupted
		}
		if !errors.Is(err, errSomeLeft) {
			all.Fail(stderr, prog, err)
		}
		return cli.Code(err)
	}
	return cli.ExitOK
}

// errSomeLeft says that some tasks were left as they are, which was printed.
var errSomeLeft = errors.New("some tasks were left as they are")

// read takes the words, and refuses what does not go together.
func (c *tasksCommand) read(words []string, fs *flag.FlagSet) (err error) {
	if len(words) == 0 {
		return cli.Errorf(tasksHelp, "nothing to do: run, move, cancel, clear or priority")
	}
	verb := words[0]
	if _, known := tasksVerbs[verb]; !known {
		return cli.Errorf(tasksHelp, "tasks cannot be changed by %q", verb)
	}
	c.change.Verb, c.change.Most = control.Verb(verb), c.limit
	for _, id := range words[1:] {
		c.change.IDs = append(c.change.IDs, control.TaskID{ID: id})
	}
	given := map[string]bool{}
	fs.Visit(func(f *flag.Flag) {
		if given[f.Name] = true; !takesTaskFlag(verb, f.Name) {
			err = errors.Join(err, cli.Errorf(tasksHelp, "-%s does not go with worker tasks %s", f.Name, verb))
		}
	})
	switch needs := tasksVerbs[verb]; {
	case err != nil:
	case verb == tasksHistory && len(words) > 1:
		err = cli.Errorf(tasksHelp, "worker tasks history takes no ids, and prints all changes")
	case verb == tasksClear && len(words) != 2:
		err = cli.Errorf("worker tasks clear payments/acme -dry-run", "worker tasks clear takes one scope")
	case verb == tasksClear:
		c.change.Scope, c.change.IDs = words[1], nil
	case verb == tasksHistory:
	case needs != "" && !given[needs]:
		err = cli.Errorf(tasksHelp, "worker tasks %s needs -%s", verb, needs)
	case len(c.change.IDs) == 0 && c.change.Scope == "":
		err = cli.Errorf("worker tasks "+verb+" -scope payments/acme -dry-run", "no task is named, and no -scope")
	case len(c.change.IDs) > 0 && c.change.Scope != "":
		err = cli.Errorf(tasksHelp, "tasks are named by their ids or by -scope, not by both")
	case len(c.change.IDs) > 0 && c.change.Type != "":
		err = cli.Errorf(tasksHelp, "-type goes with -scope, not with ids")
	case c.limit < 1 || c.limit > control.MostTasks:
		err = cli.Errorf("-limit 100", "-limit %d is not from 1 to %d", c.limit, control.MostTasks)
	}
	return err
}

func (c *tasksCommand) run(ctx context.Context) error {
	rdb, err := cli.OpenRedis(ctx, c.url)
	if err != nil {
		return err
	}
	defer func() { _ = rdb.Close() }() // nothing is in flight any more
	service, err := serviceOf(ctx, rdb, policystore.New(rdb, policystore.Config{}))
	if err != nil {
		return c.explain(ctx, err)
	}
	who := atCommandLine(c.as)
	if c.change.Verb == tasksHistory {
		return c.explain(ctx, c.history(ctx, service, who))
	}
	if c.dry {
		n, err := service.Count(ctx, who, c.change)
		if err != nil {
			return c.explain(ctx, err)
		}
		return c.printCount(n)
	}
	if c.change.Verb == control.VerbClear {
		return c.explain(ctx, c.clear(ctx, service, who))
	}
	done, err := service.ApplyTasks(ctx, who, c.change)
	if printErr := c.printDone(done); err == nil {
		err = printErr
	}
	return c.explain(ctx, err)
}

// explain puts into words why it could not be done.
func (c *tasksCommand) explain(ctx context.Context, err error) error {
	var told *cli.Error
	none := new(control.NoTaskError)
	switch {
	case err == nil || errors.As(err, &told) || errors.Is(err, errSomeLeft):
		return err
	case errors.As(err, &none):
		return noTask(none)
	case errors.As(err, new(*policy.UnmatchedError)), errors.As(err, new(*policy.ScopeError)), errors.As(err, new(*policy.CostError)),
		errors.As(err, new(*control.TaskChangeError)):
		return &cli.Error{What: plainly(err), Try: tasksHelp, Err: err}
	}
	return explain(ctx, err, c.url)
}

// history prints who changed tasks.
func (c *tasksCommand) history(ctx context.Context, service *control.Service, who control.Actor) error {
	list, err := service.Actions(ctx, who)
	if err != nil {
		return err
	}
	for _, a := range list {
		if err := c.print(actionReport{control.At(a.At), a}, actionLine(a)); err != nil {
			return err
		}
	}
	return nil
}

// actionReport is an object of "worker tasks history"; docs/json.md has its fields.
type actionReport struct {
	At control.Time `json:"at"`
	policystore.Action
}

// actionLine is what somebody did to tasks, in one line.
func actionLine(a policystore.Action) string {
	text := fmt.Sprintf("%s  %s  %s %s", control.At(a.At), a.By, a.Verb, counted(a.Changed, "task", "tasks"))
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

func (c *tasksCommand) printCount(n control.TaskCount) error {
	line := counted(int(n.Tasks), "task", "tasks")
	if n.More {
		line = "at least " + line
	}
	return c.print(tasksReport{Tasks: n.Tasks, DryRun: true, More: n.More}, "dry run: it would be "+line+"; nothing was changed")
}

// leftWords say why a task was left as it is.
var leftWords = map[waiting.Outcome]string{
	waiting.Gone: "gone meanwhile", waiting.Active: "with a worker", waiting.Dispatched: "granted their starts already",
	waiting.Pending: "next to be taken by a worker", waiting.Ended: "ended", waiting.NoScope: "without a scope in their headers",
}

var doneWords = map[control.Verb]string{
	control.VerbRun: "to start next", control.VerbMove: "moved", control.VerbCancel: "cancelled", control.VerbClear: "cancelled", control.VerbPriority: "changed",
}

func (c *tasksCommand) printDone(done control.TasksDone) error {
	if err := c.printTasks(done.Tasks); err != nil {
		return err
	}
	if err := c.printSum(done, len(done.Tasks)); err != nil {
		return err
	}
	if len(done.Left) > 0 {
		return errSomeLeft
	}
	return nil
}

func (c *tasksCommand) printTasks(tasks []control.TaskDone) error {
	if !c.json {
		return nil
	}
	for _, task := range tasks {
		if err := c.print(task, ""); err != nil {
			return err
		}
	}
	return nil
}

// printSum prints what became of some tasks, all together.
func (c *tasksCommand) printSum(done control.TasksDone, tasks int) error {
	parts := []string{fmt.Sprintf("%s %s", counted(done.Changed, "task", "tasks"), doneWords[c.change.Verb])}
	for _, why := range slices.Sorted(maps.Keys(done.Left)) {
		parts = append(parts, fmt.Sprintf("%d left: %s", done.Left[why], leftWords[why]))
	}
	if done.More {
		parts = append(parts, "more wait; run it again")
	}
	return c.print(tasksReport{Tasks: int64(tasks), Changed: done.Changed, More: done.More}, strings.Join(parts, "; "))
}

// print writes an object, or a line for people.
func (c *tasksCommand) print(object any, line string) error {
	return printOne(c.out, c.json, object, line)
}
