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
	"github.com/headway-go/headway/throttle"
	"github.com/headway-go/headway/throttle/limitsyaml"
	"github.com/headway-go/headway/throttle/policy"
	"github.com/headway-go/headway/throttle/policystore"
	"github.com/headway-go/headway/worker/control"
)

const limitsLong = `Shows and changes the limits of all workers, while they run. Each change is a version of
its own, with its author and time. It comes into force in all workers at one moment,
within a second, and the command prints in how many. A change overrides the file that a
worker was started with. Units that were spent stay spent.

A change is made to the newest version. With -if-version it is refused with a message,
and changes nothing, if another change came first. The exit code is also 1 if diff finds a difference,
or check a fault.`

// limitsCommand is one run of "worker limits".
type limitsCommand struct {
	session
	edit    control.Change // the part that flags say
	dry     bool
	all     bool
	strict  bool
	timeout time.Duration
	now     time.Time // the server's, when current was asked

	draft string // of replay

	answer, answered string // the file of a recorded answer, and the scope of its call
}

func newLimits(getenv func(string) string) *cobra.Command {
	l := &limitsCommand{}
	group := cli.Group("limits", "Show and change the limits while workers run",
		l.read("list", "Every rule, with its scope and its author", 0, 0, l.list),
		l.read("show SCOPE", "The rules that a task of SCOPE meets, and which processes follow", 1, 1, l.show),
		l.read("export", "Print the limits as a limits.yaml", 0, 0, l.export),
		l.history(), l.check(), l.replay(),
		l.read("diff [VERSION | FILE] VERSION | FILE", "How FILE or VERSION differs from the limits in force, or from another version", 1, 2, l.diff),
	)
	group.Long = limitsLong
	group.Example = `  worker limits set payments/acme tenant limit=100 burst=20
  worker limits set payments/acme tenant limit=500 -for 2h
  worker limits pause payments -for 1h
  worker limits history -json`
	l.flags(group)
	for _, c := range l.changes() {
		l.asFlag(c, getenv)
		c.Flags().StringVar(&l.edit.Reason, "reason", "", "why, for the history: a `TEXT` of up to 500 bytes on one line")
		c.Flags().Int64Var(&l.edit.IfVersion, "if-version", 0, "change nothing unless the limits are at version `N`")
		group.AddCommand(c)
	}
	return group
}

// read returns a command that changes nothing.
func (l *limitsCommand) read(use, short string, least, most int, do func(ctx context.Context, words []string) error) *cobra.Command {
	return &cobra.Command{Use: use, Short: short, Args: cli.Args(least, most), RunE: l.online(do)}
}

func (l *limitsCommand) history() *cobra.Command {
	c := l.read("history", "The stored versions, newest last, and what each has changed", 0, 0, l.printHistory)
	c.Flags().BoolVar(&l.all, "all", false, "print every rule that a version has changed, however many")
	return c
}

// changes returns the commands that change the limits.
func (l *limitsCommand) changes() []*cobra.Command {
	set := l.change("set SCOPE RULE KEY=VALUE…", "Write a rule of SCOPE: payments/acme or payments/*", 3, cli.AnyNumber, setChange)
	set.Long = `Writes a rule of SCOPE: payments/acme or payments/*. KEY is a field of limits.yaml.
Fields that are not given keep their value, and KEY= removes one. An inherited rule
becomes a rule of SCOPE's own.`
	assign := l.change("assign SCOPE KEY=VALUE…", "Set what SCOPE has besides rules", 2, 8, assignChange)
	assign.Long = `Sets what SCOPE has besides rules, as in limits.yaml: its owner (owner=NAME), the
applications that may spend from it (apps=NAME,…), the hosts that its requests may go to
(hosts=HOST,…), its weight among its siblings (weight=N), the shares of the classes
below it (shares=NAME:60%:2,…), what an API's answers may change (answers=pause,
answers={most: 150%}), and its breaker (breaker={failures: 50%}). KEY= removes it.`
	remove := l.change("remove SCOPE RULE", "Remove a rule of SCOPE, also one of the file", 2, 2, of(control.VerbRemove))
	unset := l.change("unset [SCOPE [RULE]]", "Undo all changes to a rule, to SCOPE or to everything: the file applies again", 0, 2, of(control.VerbUnset))
	var replace bool
	importing := l.change("import FILE", "Set every rule of FILE", 1, 1, func(words []string) (control.Change, error) {
		p, err := readLimits(words[0])
		return control.Change{Verb: control.VerbImport, Policy: p, From: words[0], Replace: replace}, err
	})
	importing.Flags().BoolVar(&replace, "replace", false, "undo all changes, and have FILE take the place of the file that workers were started with")
	rollback := l.change("rollback VERSION", "Return to the limits of VERSION", 1, 1, func(words []string) (control.Change, error) {
		number, is := versionOf(words[0])
		if !is {
			return control.Change{}, cli.Usage(cli.Errorf("worker limits history", "%q is not a version number", words[0]))
		}
		return control.Change{Verb: control.VerbRollback, Version: number}, nil
	})
	reset := l.change("reset SCOPE [RULE]", "Forget the spending under the rules of SCOPE, or under one of them; the history keeps how much it was", 1, 2, of(control.VerbReset))
	pause := l.change("pause SCOPE", "Let no task of SCOPE or below it start", 1, 1, of(control.VerbPause))
	pause.Long = "Lets no task of SCOPE or below it start. They wait in their order. payments/* pauses each\nname under payments."
	resume := l.change("resume SCOPE", "End a pause of SCOPE by the limits", 1, 1, of(control.VerbResume))
	resume.Long = "Ends the pause of SCOPE. resume payments/acme also exempts it from a pause of\npayments/*, and not from a pause of payments. limits close ends a pause that an API asked for."
	opening := l.change("open SCOPE", "Open the breaker of SCOPE: nothing starts there but probes, after a time", 1, 1, of(control.VerbOpen))
	opening.Long = `Opens the breaker of SCOPE, as if its calls failed. After -for, or after the wait that the
limits have, tasks go as probes, and the first that succeeds closes it. payments/* is no
SCOPE: each name has a breaker of its own.`
	closing := l.change("close SCOPE", "Call SCOPE again now: close its breaker, and end a pause that its API asked for", 1, 1, of(control.VerbClose))
	closing.Long = `Ends what answers of the API have stopped at SCOPE: closes its breaker, after which its limits
count a tenth at first, and ends a pause that the API asked for, such as the quarantine of a
pool's member, payments/@key1. limits resume ends a pause by the limits.`
	cli.DurationVar(opening.Flags(), &l.edit.For, "for", 0, "after how long the first probe goes, 24h at most. Default: the wait of the breaker")
	drain := &cobra.Command{Use: "drain SCOPE", Short: "Pause, then wait until no task of SCOPE runs", Args: cli.Args(1, 1), RunE: l.bounded(l.online(l.drain))}
	cli.DurationVar(drain.Flags(), &l.timeout, "timeout", 0, "how long to wait. The pause stays. Default: no bound")
	for _, c := range []*cobra.Command{set, remove, pause, drain} {
		cli.DurationVar(c.Flags(), &l.edit.For, "for", 0, "for how long, such as 2h or 7d. Then the earlier state applies again. Default: for good")
	}
	for _, c := range []*cobra.Command{set, assign, pause, drain} {
		c.Flags().BoolVar(&l.edit.Force, "force", false, "also if the limits have no SCOPE")
	}
	return []*cobra.Command{set, assign, l.tier(), remove, unset, importing, rollback, reset, pause, resume, opening, closing, drain}
}

// of returns what reads the words of a verb that takes a scope and a rule, or less.
func of(verb control.Verb) func(words []string) (control.Change, error) {
	return func(words []string) (control.Change, error) {
		words = append(words, "", "")
		return control.Change{Verb: verb, Scope: words[0], Rule: words[1]}, nil
	}
}

// change returns a command that makes the change which read returns for its words.
func (l *limitsCommand) change(use, short string, least, most int, read func(words []string) (control.Change, error)) *cobra.Command {
	c := &cobra.Command{Use: use, Short: short, Args: cli.Args(least, most)}
	c.RunE = l.bounded(func(c *cobra.Command, words []string) error {
		edit, err := read(words)
		if err != nil {
			return err
		}
		return l.online(func(ctx context.Context, _ []string) error { return l.apply(ctx, edit) })(c, words)
	})
	c.Flags().BoolVar(&l.dry, "dry-run", false, "print what would change, and when the last of the tasks that wait there would start; change nothing")
	return c
}

// bounded refuses durations and versions that no change has.
func (l *limitsCommand) bounded(run func(*cobra.Command, []string) error) func(*cobra.Command, []string) error {
	return func(c *cobra.Command, words []string) error {
		for flag, d := range map[string]time.Duration{"for": l.edit.For, "timeout": l.timeout} {
			if f := c.Flags().Lookup(flag); f != nil && f.Changed && d <= 0 {
				return cli.Usage(cli.Errorf("leave -"+flag+" out for no bound", "-%s %s is not above 0", flag, d))
			}
		}
		if l.edit.IfVersion < 0 {
			return cli.Usage(cli.Errorf("worker limits history", "-if-version %d is not a version", l.edit.IfVersion))
		}
		return run(c, words)
	}
}

func setChange(words []string) (control.Change, error) {
	fields := map[string]string{}
	for _, word := range words[2:] {
		key, value, found := strings.Cut(word, "=")
		if _, twice := fields[key]; !found || key == "" || twice {
			return control.Change{}, cli.Errorf("worker limits set payments/acme tenant limit=100 per=1s", "%q is not KEY=VALUE, or repeats a key", word)
		}
		fields[key] = value
	}
	return control.Change{Verb: control.VerbSet, Scope: words[0], Rule: words[1], Fields: fields}, nil
}

func assignChange(words []string) (control.Change, error) {
	var as policystore.Assigned
	given := map[string]bool{}
	for _, word := range words[1:] {
		key, value, _ := strings.Cut(word, "=")
		if !slices.Contains(control.AssignedKeys, key) || given[key] {
			return control.Change{}, cli.Errorf("worker limits assign payments owner=payments-team apps=billing,refunds",
				"%q is not owner=NAME, apps=NAME,…, hosts=HOST,…, weight=N, shares=NAME:60%%:2,…, answers=WORD or breaker={…}, or repeats one of them", word)
		}
		given[key] = true
		if err := control.ReadAssigned(&as, key, value); err != nil {
			return control.Change{}, &cli.Error{What: err.Error(), Try: "worker limits assign -h", Err: err}
		}
	}
	return control.Change{Verb: control.VerbAssign, Scope: words[0], Assigned: as}, nil
}

// with adds to a change what the flags say.
func (l *limitsCommand) with(c control.Change) control.Change {
	c.Reason, c.For, c.IfVersion, c.Force = l.edit.Reason, l.edit.For, l.edit.IfVersion, l.edit.Force
	return c
}

// apply makes a change, or with -dry-run only says what it would do.
func (l *limitsCommand) apply(ctx context.Context, c control.Change) error {
	service, err := l.service(ctx)
	if err != nil {
		return err
	}
	if l.dry {
		return l.preview(ctx, service, l.with(c))
	}
	done, err := service.Apply(ctx, l.actor(), l.with(c))
	switch {
	case err != nil:
		return refused(c, err)
	case c.Verb == control.VerbReset:
		for _, r := range done.Version.Resets {
			l.out.Print(resetReport{r.Scope, r.Rule, true, r.Unit, r.Used, done.Version.Number}, resetLine(r))
		}
	case done.Version.Breaker != "":
		v := done.Version
		l.out.Print(versionReportOf(v, nil), fmt.Sprintf("version %d by %s: %s", v.Number, author(v.By, v.User), cli.Quote(v.Change))+reasonText(v.Reason))
	default:
		l.printMade(ctx, done)
	}
	return nil
}

// refused says what to do about a reset without an effect.
func refused(c control.Change, err error) error {
	if !errors.Is(err, policystore.ErrNothingToReset) {
		return err
	}
	rule := "rate rule"
	if c.Rule != "" {
		rule += " " + cli.Quote(c.Rule)
	}
	return cli.Errorf("worker limits show "+cli.Quote(c.Scope), "no %s counts at %s itself", rule, cli.Quote(c.Scope))
}

// previewReport is what -dry-run prints; docs/json.md has its fields.
type previewReport struct {
	DryRun  bool                `json:"dry_run"`
	Version int64               `json:"version"`
	Rules   int                 `json:"rules"`
	Diff    []differenceReport  `json:"diff,omitempty"`
	Resets  []policystore.Reset `json:"resets,omitempty"`
	Effect  control.Effect      `json:"effect"`
}

func (l *limitsCommand) preview(ctx context.Context, service *control.Service, c control.Change) error {
	p, err := service.Preview(ctx, l.actor(), c)
	if err != nil {
		return refused(c, err)
	}
	text := fmt.Sprintf("dry run over version %d: nothing was changed", p.Version)
	for _, d := range p.Differences {
		text += "\n" + differenceLines(d, "  ")
	}
	for _, r := range p.Resets {
		text += fmt.Sprintf("\n  %s %s would be reset; it has counted %s", cli.Quote(r.Scope), cli.Quote(r.Rule), usedText(r))
	}
	l.out.Print(previewReport{true, p.Version, len(p.Differences), differenceReports(p.Differences), p.Resets, p.Effect}, text+"\n  "+p.Effect.String())
	return nil
}

// resetReport is what reset prints for each rule; docs/json.md has its fields.
type resetReport struct {
	Scope   string `json:"scope"`
	Rule    string `json:"rule"`
	Reset   bool   `json:"reset"`
	Unit    string `json:"unit,omitempty"`
	Used    int64  `json:"used"`
	Version int64  `json:"version"`
}

func resetLine(r policystore.Reset) string {
	if r.Rule == "" {
		return cli.Quote(r.Scope) + " is no longer paused"
	}
	return fmt.Sprintf("%s %s is reset, as if it had not been used; it had counted %s", cli.Quote(r.Scope), cli.Quote(r.Rule), usedText(r))
}

func usedText(r policystore.Reset) string {
	if r.Unit == policy.Requests {
		return cli.Count(int(r.Used), "request", "requests")
	}
	return cli.Quote(policy.Amount(r.Used, r.Unit))
}

// current returns the newest version and its limits at the server's time, which is noted.
func (l *limitsCommand) current(ctx context.Context) (policystore.Version, *policy.Policy, error) {
	store := l.store()
	v, err := store.Current(ctx)
	if err != nil {
		return v, nil, err
	}
	if l.now, err = store.Time(ctx); err != nil {
		return v, nil, err
	}
	p, _, err := store.Policy(ctx, v, l.now)
	if err == nil {
		p = store.WithTiers(ctx, p)
	}
	return v, p, err
}

// versionOf reads the number of a version. A file whose name is a number needs a path: ./12.
func versionOf(word string) (int64, bool) {
	number, err := strconv.ParseInt(word, 10, 64)
	return number, err == nil && number > 0
}

// checkReport is one line of "worker limits check -json"; docs/json.md has its fields.
type checkReport struct {
	File  string `json:"file"`
	Level string `json:"level"` // fault or warning
	Line  int    `json:"line,omitempty"`
	// Column counts characters from 1.
	Column int    `json:"column,omitempty"`
	Scope  string `json:"scope,omitempty"`
	Rule   string `json:"rule,omitempty"`
	Text   string `json:"text"`
}

// check returns the command that prints what is wrong with files, and what is odd in those that have no fault.
func (l *limitsCommand) check() *cobra.Command {
	c := &cobra.Command{Use: "check FILE…", Short: "Print every fault of each FILE, and warnings; it needs no Redis", Args: cli.Args(1, cli.AnyNumber), RunE: l.offline(l.checkFiles)}
	c.Long = `Prints every fault of each FILE, and warnings: an override that changes nothing, a rule that
can never bind. It needs no Redis.

With -answer it prints what an answer of an API would do under the limits of one FILE: which
scope waits, and for how long. An answer is recorded as it comes, as by curl -i.`
	c.Example = `  worker limits check limits.yaml
  curl -si https://api.github.com/user >answer.txt
  worker limits check limits.yaml -answer answer.txt -scope github/acme`
	c.Flags().StringVar(&l.answer, "answer", "", "print what the recorded answer in this `FILE` means")
	c.Flags().StringVar(&l.answered, "scope", "", "the `SCOPE` whose call was answered")
	c.Flags().BoolVar(&l.strict, "strict", false, "the exit code is 1 for warnings too")
	return c
}

func (l *limitsCommand) checkFiles(paths []string) error {
	if l.answer != "" || l.answered != "" {
		return l.checkAnswer(paths)
	}
	faults, warnings := 0, 0
	for _, path := range paths {
		rules, err := limitsyaml.Load(path)
		refused, faulty := errors.AsType[*policy.Error](err)
		if err != nil && !faulty {
			return limitsUnread(path, err)
		}
		if faulty {
			for _, f := range refused.Faults {
				faults++
				sep := ":" // as editors jump to a line
				if f.Line == 0 {
					sep = ": "
				}
				l.out.Print(checkReport{File: path, Level: "fault", Line: f.Line, Column: f.Column, Text: f.String()}, path+sep+f.String())
			}
			continue
		}
		for _, w := range throttle.Lint(rules) {
			warnings++
			l.out.Print(checkReport{File: path, Level: "warning", Scope: w.Scope, Rule: w.Rule, Text: w.Reason}, fmt.Sprintf("%s: warning: %s", path, w))
		}
	}
	if faults > 0 || l.strict && warnings > 0 {
		return cli.ErrPrinted
	}
	return nil
}
