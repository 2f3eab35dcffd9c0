package main

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"maps"
	"os"
	"os/user"
	"slices"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/headway-go/headway/cmd/internal/celltree"
	"github.com/headway-go/headway/cmd/internal/cli"
	"github.com/headway-go/headway/queue"
	"github.com/headway-go/headway/throttle/limitsyaml"
	"github.com/headway-go/headway/throttle/policy"
	"github.com/headway-go/headway/throttle/policystore"
	"github.com/headway-go/headway/worker/control"
)

// limitsUsage is what "worker limits -h" prints; testdata/limits.golden holds the same
// text.
const limitsUsage = `Usage: worker limits list | export | history [flags]
       worker limits show SCOPE [flags]
       worker limits set SCOPE RULE KEY=VALUE… [flags]
       worker limits assign SCOPE [owner=NAME] [apps=NAME,…] [hosts=HOST,…] [weight=N]
                     [shares=NAME:60%:2,…] [answers=WORD] [flags]
       worker limits remove SCOPE RULE [flags]
       worker limits unset [SCOPE [RULE]] [flags]
       worker limits import [-replace] FILE [flags]
       worker limits diff [VERSION | FILE] VERSION | FILE [flags]
       worker limits check FILE… [-strict] [-json]
       worker limits convert FILE [-json]
       worker limits rollback VERSION [flags]
       worker limits reset SCOPE [RULE] [flags]
       worker limits pause | resume | drain SCOPE [flags]

Shows and changes the limits of all workers, while they run. Each change is a
version of its own, with its author and time. It comes into force in all workers
at one moment, within a second, and the command prints in how many. A change
overrides the file that a worker was started with. Units that were spent stay
spent.

  list      every rule, where it stands and who set it
  show      the rules that a task of SCOPE meets, and which processes follow
  set       write a rule of SCOPE: payments/acme or payments/*. KEY is a field of
            limits.yaml. Fields that are not given keep their value, and KEY=
            removes one. An inherited rule becomes a rule of SCOPE's own
  assign    set what SCOPE has besides rules, as in limits.yaml: its owner, the
            applications that may spend from it, the hosts that its requests may
            go to, its weight among its siblings, the shares of the classes below
            it, and what an API's answers may change (answers=pause,
            answers={most: 150%}). owner=, apps=, hosts=, weight=, shares= and
            answers= remove it
  remove    remove a rule of SCOPE, also one of the file
  unset     undo all changes to a rule, to SCOPE or to everything: the file
            applies again
  import    set every rule of FILE. With -replace, FILE takes the place of the
            file that workers were started with, and all changes are undone
  export    print the limits as a limits.yaml
  diff      print how FILE or VERSION differs from the limits in force, or from
            another version; the exit code is then 1
  check     print every fault of each FILE, and warnings: an override that
            changes nothing, a rule that can never bind. It needs no Redis
  convert   print as limits.yaml a tree of limits for redis-cell: names under
            children, and under limits [burst, count, seconds]. It needs no Redis
  history   the stored versions, newest last, and what each has changed
  rollback  return to the limits of VERSION
  reset     forget the spending under the rules of SCOPE, or under one of them, and
            print how much it was; the history keeps that
  pause     let no task of SCOPE or below it start. They wait in their order.
            payments/* pauses each name under payments
  resume    end the pause of SCOPE. resume payments/acme also exempts it from a
            pause of payments/*, and not from a pause of payments
  drain     pause, then wait until no task of SCOPE runs

Flags:
  -redis URL        where the limits are. Default: REDIS_URL from the environment,
                    else the embedded server of a worker on 127.0.0.1:6390
  -as NAME          the author, for the history. It is a label: the history has the
                    Redis user besides. Default: the user's name
  -reason TEXT      why, for the history: up to 500 bytes on one line
  -if-version N     change nothing unless the limits are at version N
  -for DURATION     of set, remove, pause and drain: for how long, such as 2h or
                    7d. Then the earlier state applies again. Default: for good
  -timeout DURATION of drain: how long to wait. The pause stays. Default: no bound
  -force            of set, assign, pause and drain: also if the limits have no SCOPE
  -dry-run          of each change, but not of drain: print what would change, and
                    when the last of the tasks that wait there would start. Change
                    nothing
  -all              of history: every rule that a version has changed, however many
  -replace          of import: undo all changes, and replace the workers' file
  -strict           of check: the exit code is 1 for warnings too
  -json             print objects, one a line
  -h                print this

If another person changes the same rule at the same time, the second change is
refused with a message, and changes nothing.

Exit codes: 0 done, 1 something failed or is different, 2 bad usage, 130
interrupted.

Examples:
  worker limits set payments/acme tenant limit=100 burst=20
  worker limits set payments/acme tenant limit=500 -for 2h
  worker limits pause payments -for 1h
  worker limits history -json
`

const limitsHelp = "worker limits -h"

// limitsCommand is one run of "worker limits".
type limitsCommand struct {
	verb    string
	words   []string
	url     string
	as      string
	reason  string
	version int64
	lasts   time.Duration
	timeout time.Duration
	replace bool
	strict  bool
	force   bool
	dry     bool
	all     bool
	json    bool

	rdb   redis.UniversalClient
	store *policystore.Store
	now   time.Time // the server's, when current was asked
	out   io.Writer
	errs  io.Writer
}

// limitsVerb is what one verb takes and does.
type limitsVerb struct {
	least, most int // words
	words       string
	flags       string // of those that only some verbs take
	offline     bool   // it asks no Redis
	run         func(*limitsCommand, context.Context) error
}

func (v limitsVerb) takes(flagName string) bool {
	return flagName == "json" || flagName == "redis" && !v.offline || slices.Contains(strings.Fields(v.flags), flagName)
}

const anyNumber = 1 << 10

var limitsVerbs = map[string]limitsVerb{
	"list":     {0, 0, "", "", false, (*limitsCommand).list},
	"export":   {0, 0, "", "", false, (*limitsCommand).export},
	"history":  {0, 0, "", "all", false, (*limitsCommand).history},
	"show":     {1, 1, "SCOPE", "", false, (*limitsCommand).show},
	"set":      {3, anyNumber, "SCOPE RULE KEY=VALUE…", "as reason if-version dry-run for force", false, (*limitsCommand).set},
	"assign":   {2, 8, "SCOPE [owner=NAME] [apps=NAME,…] [hosts=HOST,…] [weight=N] [shares=NAME:60%:2,…] [answers=WORD]", "as reason if-version dry-run force", false, (*limitsCommand).assign},
	"remove":   {2, 2, "SCOPE RULE", "as reason if-version dry-run for", false, (*limitsCommand).remove},
	"unset":    {0, 2, "[SCOPE [RULE]]", "as reason if-version dry-run", false, (*limitsCommand).unset},
	"import":   {1, 1, "FILE", "as reason if-version dry-run replace", false, (*limitsCommand).importFile},
	"check":    {1, anyNumber, "FILE…", "strict", true, (*limitsCommand).check},
	"convert":  {1, 1, "FILE", "", true, (*limitsCommand).convert},
	"diff":     {1, 2, "[VERSION | FILE] VERSION | FILE", "", false, (*limitsCommand).diff},
	"rollback": {1, 1, "VERSION", "as reason if-version dry-run", false, (*limitsCommand).rollback},
	"reset":    {1, 2, "SCOPE [RULE]", "as reason if-version dry-run", false, (*limitsCommand).reset},
	"pause":    {1, 1, "SCOPE", "as reason if-version dry-run for force", false, (*limitsCommand).pause},
	"resume":   {1, 1, "SCOPE", "as reason if-version dry-run", false, (*limitsCommand).resume},
	"drain":    {1, 1, "SCOPE", "as reason if-version for timeout force", false, (*limitsCommand).drain},
}

// newLimits returns the command "worker limits", and what it reads.
func newLimits() (*cli.Command, *limitsCommand) {
	all, c := cli.NewCommand(prog+" limits", limitsUsage), &limitsCommand{}
	all.Mixed, all.About = true, "show and change the limits while workers run"
	fs := all.Flags
	fs.StringVar(&c.url, "redis", "", "")
	fs.StringVar(&c.as, "as", "", "")
	fs.StringVar(&c.reason, "reason", "", "")
	fs.Int64Var(&c.version, "if-version", 0, "")
	fs.BoolVar(&c.replace, "replace", false, "")
	fs.BoolVar(&c.strict, "strict", false, "")
	fs.BoolVar(&c.force, "force", false, "")
	fs.BoolVar(&c.dry, "dry-run", false, "")
	fs.BoolVar(&c.all, "all", false, "")
	fs.BoolVar(&c.json, "json", false, "")
	fs.Func("for", "", func(text string) (err error) {
		if c.lasts, err = queue.ParseDuration(text); err == nil && c.lasts == 0 {
			err = errors.New("0 is too short; without -for the change is permanent")
		}
		return err
	})
	fs.Func("timeout", "", func(text string) (err error) {
		if c.timeout, err = queue.ParseDuration(text); err == nil && c.timeout <= 0 {
			err = errors.New("not above 0; without -timeout drain waits without a bound")
		}
		return err
	})
	for _, name := range slices.Sorted(maps.Keys(limitsVerbs)) {
		all.Commands = append(all.Commands, verbCommand(all, name))
	}
	return all, c
}

// verbCommand is one verb of "worker limits" with the flags that it takes, for completion.
func verbCommand(all *cli.Command, name string) *cli.Command {
	verb := limitsVerbs[name]
	c := cli.NewCommand(all.Name+" "+name, all.Usage)
	c.About, c.Files = cli.AboutWord(all.Usage, name), strings.Contains(verb.words, "FILE")
	all.Flags.VisitAll(func(f *flag.Flag) {
		if verb.takes(f.Name) {
			c.Flags.Var(f.Value, f.Name, "")
		}
	})
	return c
}

// runLimits is the program "worker limits".
func runLimits(ctx context.Context, args []string, getenv func(string) string, stdout, stderr io.Writer) int {
	all, c := newLimits()
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
		if !errors.Is(err, errDifferent) {
			all.Fail(stderr, prog, err)
		}
		return cli.Code(err)
	}
	return cli.ExitOK
}

// userName is who runs the program.
func userName(getenv func(string) string) string {
	for _, name := range []string{"USER", "USERNAME"} {
		if who := strings.TrimSpace(getenv(name)); who != "" {
			return who
		}
	}
	if who, err := user.Current(); err == nil {
		return who.Username
	}
	return "unknown"
}

// read takes the words, and refuses flags that the verb does not take.
func (c *limitsCommand) read(words []string, fs *flag.FlagSet) error {
	if len(words) == 0 {
		return cli.Errorf(limitsHelp, "nothing to do: list, show, set, assign, remove, unset, import, export, convert, diff, check, history, rollback, reset, pause, resume or drain")
	}
	verb, known := limitsVerbs[words[0]]
	if !known {
		return cli.Errorf(limitsHelp, "limits cannot be %q%s", words[0], cli.DidYouMean(words[0], "", slices.Sorted(maps.Keys(limitsVerbs))))
	}
	c.verb, c.words = words[0], words[1:]
	if n := len(c.words); n < verb.least || n > verb.most {
		return cli.Errorf("worker limits "+strings.TrimSpace(c.verb+" "+verb.words), "worker limits %s takes %s", c.verb, cmp.Or(verb.words, "flags only"))
	}
	var err error
	fs.Visit(func(f *flag.Flag) {
		if !verb.takes(f.Name) {
			err = errors.Join(err, cli.Errorf(limitsHelp, "-%s does not go with worker limits %s", f.Name, c.verb))
		}
	})
	if err == nil && c.version < 0 {
		err = cli.Errorf("worker limits history", "-if-version %d is not a version", c.version)
	}
	return err
}

func (c *limitsCommand) run(ctx context.Context) error {
	if limitsVerbs[c.verb].offline {
		return limitsVerbs[c.verb].run(c, ctx)
	}
	rdb, err := cli.OpenRedis(ctx, c.url)
	if err != nil {
		return err
	}
	defer func() { _ = rdb.Close() }() // nothing is in flight any more
	c.rdb, c.store = rdb, policystore.New(rdb, policystore.Config{})
	return c.explain(ctx, limitsVerbs[c.verb].run(c, ctx))
}

// explain puts into words why it could not be done.
func (c *limitsCommand) explain(ctx context.Context, err error) error {
	var told *cli.Error
	switch {
	case err == nil || errors.As(err, &told) || errors.Is(err, errDifferent):
		return err
	case errors.Is(err, policystore.ErrNone):
		return &cli.Error{What: "there are no limits at " + cli.RedisName(c.url), Try: "worker limits import -replace limits.yaml, or start a worker with -limits", Err: err}
	case errors.Is(err, policystore.ErrNotPermitted):
		return &cli.Error{What: "the user of Redis at " + cli.RedisName(c.url) + " may not change limits; nothing was changed",
			Try: "a -redis URL with a user that may; docs/operations.md has its ACL rule", Err: err}
	case errors.As(err, new(*policystore.ConflictError)):
		return &cli.Error{What: plainly(err), Try: "worker limits history, then make your change to the newest version", Err: err}
	case errors.As(err, new(*policystore.VersionError)):
		return &cli.Error{What: plainly(err), Try: "worker limits history", Err: err}
	case errors.As(err, new(*policystore.DamagedError)):
		return explainLimits(err)
	case errors.As(err, new(*policystore.ReasonError)), errors.As(err, new(*policystore.MissingError)), errors.As(err, new(*policystore.NotPausedError)), errors.Is(err, policystore.ErrUnchanged),
		errors.As(err, new(*policy.Error)), errors.As(err, new(*policy.ScopeError)), errors.As(err, new(*policy.UnmatchedError)):
		return &cli.Error{What: plainly(err), Err: err}
	}
	return explain(ctx, err, c.url)
}

// current is what stands there, and what it comes to at the server's time, which is noted.
func (c *limitsCommand) current(ctx context.Context) (policystore.Version, *policy.Policy, error) {
	v, err := c.store.Current(ctx)
	if err != nil {
		return v, nil, err
	}
	if c.now, err = c.store.Time(ctx); err != nil {
		return v, nil, err
	}
	p, _, err := c.store.Policy(ctx, v, c.now)
	return v, p, err
}

func (c *limitsCommand) set(ctx context.Context) error {
	fields := map[string]string{}
	for _, word := range c.words[2:] {
		key, value, found := strings.Cut(word, "=")
		if _, twice := fields[key]; !found || key == "" || twice {
			return &cli.Error{What: fmt.Sprintf("%q is not KEY=VALUE, or repeats a key", word), Try: "worker limits set payments/acme tenant limit=100 per=1s"}
		}
		fields[key] = value
	}
	return c.apply(ctx, control.Change{Verb: control.VerbSet, Scope: c.words[0], Rule: c.words[1], Fields: fields})
}

func (c *limitsCommand) assign(ctx context.Context) error {
	var as policystore.Assigned
	given := map[string]bool{}
	for _, word := range c.words[1:] {
		key, value, _ := strings.Cut(word, "=")
		if !slices.Contains(control.AssignedKeys, key) || given[key] {
			return &cli.Error{What: fmt.Sprintf("%q is not owner=NAME, apps=NAME,…, hosts=HOST,…, weight=N, shares=NAME:60%%:2,… or answers=WORD, or repeats one of them", word), Try: "worker limits assign payments owner=payments-team apps=billing,refunds"}
		}
		given[key] = true
		if err := control.ReadAssigned(&as, key, value); err != nil {
			return &cli.Error{What: err.Error(), Try: limitsHelp, Err: err}
		}
	}
	return c.apply(ctx, control.Change{Verb: control.VerbAssign, Scope: c.words[0], Assigned: as})
}

func (c *limitsCommand) remove(ctx context.Context) error {
	return c.apply(ctx, control.Change{Verb: control.VerbRemove, Scope: c.words[0], Rule: c.words[1]})
}

func (c *limitsCommand) unset(ctx context.Context) error {
	words := append(c.words, "", "")
	return c.apply(ctx, control.Change{Verb: control.VerbUnset, Scope: words[0], Rule: words[1]})
}

func (c *limitsCommand) importFile(ctx context.Context) error {
	p, err := readLimits(c.words[0])
	if err != nil {
		return err
	}
	return c.apply(ctx, control.Change{Verb: control.VerbImport, Policy: p, From: c.words[0], Replace: c.replace})
}

// readLimits reads a file, "-" for standard input.
func readLimits(path string) (*policy.Policy, error) {
	if path != "-" {
		return loadPolicy(path)
	}
	name, text, err := readInput(path)
	if err != nil {
		return nil, err
	}
	p, err := limitsyaml.Parse(name, text)
	if err != nil {
		return nil, &cli.Error{What: err.Error(), Try: "correct these lines; nothing was changed", Err: err}
	}
	return p, nil
}

// readInput reads a file, "-" for standard input, and returns what errors call it.
func readInput(path string) (name string, text []byte, err error) {
	if path == "-" {
		text, err = io.ReadAll(os.Stdin)
		if err != nil {
			return "", nil, fmt.Errorf("cannot read standard input: %w", err)
		}
		return "standard input", text, nil
	}
	if text, err = os.ReadFile(path); err != nil {
		return "", nil, limitsUnread(path, err)
	}
	return path, text, nil
}

// convert prints what a tree for redis-cell comes to.
func (c *limitsCommand) convert(context.Context) error {
	name, text, err := readInput(c.words[0])
	if err != nil {
		return err
	}
	p, err := celltree.Parse(name, text)
	if err != nil {
		return &cli.Error{What: err.Error(), Try: "correct these lines; docs/from-redis-rate.md has an example", Err: err}
	}
	yaml := string(limitsyaml.Format(p))
	return c.print(struct {
		Limits string `json:"limits"`
	}{yaml}, strings.TrimSuffix(yaml, "\n"))
}

func (c *limitsCommand) rollback(ctx context.Context) error {
	number, is := versionOf(c.words[0])
	if !is {
		return cli.Errorf("worker limits history", "%q is not a version number", c.words[0])
	}
	return c.apply(ctx, control.Change{Verb: control.VerbRollback, Version: number})
}
