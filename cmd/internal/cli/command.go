package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"
	"unicode"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/headway-go/headway/internal/diag"
	durations "github.com/headway-go/headway/internal/duration"
)

// Execute runs the program root with the words args, and returns its exit code. Flags that args do not give
// are read from the environment (see variables). A flag may begin with one dash or two.
func Execute(ctx context.Context, root *cobra.Command, args []string, getenv func(string) string, stdout, stderr io.Writer) int {
	out, env, ran := &results{Writer: stdout}, environment{getenv: getenv, from: map[string]string{}}, false
	if name := filepath.Base(os.Args[0]); name == "headway-"+root.Name() { // its name in a release, for completion
		root.Use = "headway-" + root.Use
	}
	root.SetOut(out)
	root.SetErr(stderr)
	root.SilenceErrors, root.SilenceUsage = true, true
	root.SetVersionTemplate("{{.Name}} {{.Version}}\n")
	root.SetUsageTemplate(strings.ReplaceAll(root.UsageTemplate(), ".FlagUsages", ".FlagUsagesWrapped 100"))
	root.SetFlagErrorFunc(flagError)
	root.PersistentPreRunE = func(c *cobra.Command, _ []string) error { return env.read(c) }
	for _, c := range tree(root) {
		describeVariables(c)
		c.SuggestionsMinimumDistance = 2
		if run := c.RunE; run != nil {
			c.RunE = func(c *cobra.Command, words []string) error {
				ran = true
				return run(c, words)
			}
		}
	}
	root.SetArgs(longFlags(root, args))
	c, err := root.ExecuteContextC(ctx)
	if out.err != nil {
		ran, err = true, fmt.Errorf("cannot write the results: %w", out.err)
	}
	code, usage := ExitFailed, usageError{}
	switch {
	case err == nil:
		return ExitOK
	case errors.Is(err, ErrPrinted):
		return ExitFailed
	case !ran && !errors.As(err, new(*Error)): // of cobra
		code, err = ExitUsage, &Error{What: err.Error(), Try: c.CommandPath() + " -h", Err: err}
	case !ran:
		code = ExitUsage
	case errors.As(err, &usage):
		code, err = ExitUsage, usage.error
	case ctx.Err() != nil:
		code = ExitInterrupted
	}
	if code != ExitInterrupted || !errors.Is(err, context.Canceled) {
		Fail(stderr, c.CommandPath(), errors.Join(err, env.note(err)))
	}
	return code
}

// tree returns a command and all below it.
func tree(c *cobra.Command) []*cobra.Command {
	all := []*cobra.Command{c}
	for _, sub := range c.Commands() {
		all = append(all, tree(sub)...)
	}
	return all
}

// longFlags rewrites -name as --name, which pflag would read as shorthands, and -name value as --name=value, so that cobra finds
// the subcommand behind it. Values, "-", words with a digit after the dash and what follows "--" stay as they are.
func longFlags(root *cobra.Command, args []string) (long []string) {
	if len(args) > 0 && strings.HasPrefix(args[0], cobra.ShellCompRequestCmd) {
		return args
	}
	valued := map[string]bool{}
	for _, c := range tree(root) {
		add := func(f *pflag.Flag) { valued[f.Name] = f.NoOptDefVal == "" }
		c.Flags().VisitAll(add)
		c.PersistentFlags().VisitAll(add)
	}
	for i := 0; i < len(args); i++ {
		flag := strings.TrimPrefix(strings.TrimPrefix(args[i], "-"), "-")
		name, _, joined := strings.Cut(flag, "=")
		switch {
		case args[i] == "--":
			return append(long, args[i:]...)
		case flag == args[i], flag == "", unicode.IsDigit(rune(flag[0])), len(name) == 1 && !valued[name]:
			long = append(long, args[i])
		case valued[name] && !joined && i+1 < len(args):
			i++
			long = append(long, "--"+name+"="+args[i])
		default:
			long = append(long, "--"+flag)
		}
	}
	return long
}

// flagError puts an error of pflag into words, with the flag that is nearest to one that does not exist.
func flagError(c *cobra.Command, err error) error {
	what := err.Error()
	if unknown, is := errors.AsType[*pflag.NotExistError](err); is {
		var names []string
		c.Flags().VisitAll(func(f *pflag.Flag) { names = append(names, f.Name) })
		what = "unknown flag -" + unknown.GetSpecifiedName()
		if near := diag.Nearest(unknown.GetSpecifiedName(), names); near != "" {
			what += "; did you mean -" + near + "?"
		}
	}
	if invalid, is := errors.AsType[*pflag.InvalidValueError](err); is {
		what = fmt.Sprintf("invalid value %q for flag -%s: %v", invalid.GetValue(), invalid.GetFlag().Name, invalid.Unwrap())
	}
	if missing, is := errors.AsType[*pflag.ValueRequiredError](err); is {
		what = "flag -" + missing.GetSpecifiedName() + " needs a value"
	}
	return &Error{What: what, Try: c.CommandPath() + " -h", Err: err}
}

// Args checks the words that follow a command, from least to most of them. The Use of the command names them.
func Args(least, most int) cobra.PositionalArgs {
	return func(c *cobra.Command, words []string) error {
		switch _, takes, _ := strings.Cut(c.Use, " "); {
		case c.HasSubCommands() && len(words) > 0:
			near := ""
			if list := c.SuggestionsFor(words[0]); len(list) > 0 {
				near = "; did you mean " + list[0] + "?"
			}
			return Errorf(c.CommandPath()+" -h", "unknown command %q%s", words[0], near)
		case len(words) > most:
			return Errorf(c.CommandPath()+" -h", "unexpected argument %q: write %s", words[most], cmp.Or(takes, "flags only"))
		case len(words) < least:
			return Errorf(c.CommandPath()+" -h", "an argument is missing: write %s", takes)
		}
		return nil
	}
}

// AnyNumber is the most of Args where there is no bound.
const AnyNumber = math.MaxInt

// Group returns a command that is nothing without one of the commands below it.
func Group(name, short string, below ...*cobra.Command) *cobra.Command {
	c := &cobra.Command{Use: name + " COMMAND", Short: short, Args: Args(0, 0), RunE: func(c *cobra.Command, _ []string) error {
		var names []string
		for _, sub := range c.Commands() {
			if sub.IsAvailableCommand() {
				names = append(names, sub.Name())
			}
		}
		return Usage(Errorf(c.CommandPath()+" -h", "no command given: %s", strings.Join(names, ", ")))
	}}
	c.AddCommand(below...)
	return c
}

// RedisFlag adds the flag -redis to a command and to all below it.
func RedisFlag(c *cobra.Command, url *string) {
	c.PersistentFlags().StringVar(url, "redis", "", "`URL` of Redis. Default: REDIS_URL from the environment, "+
		"else the embedded server of a worker on "+EmbeddedAddr)
}

// ChoiceVar adds a flag whose values the shell completes. The program checks the value, with all others.
func ChoiceVar(c *cobra.Command, value *string, name, standard, usage string, choices ...string) {
	c.Flags().StringVar(value, name, standard, usage)
	complete := cobra.FixedCompletions(choices, cobra.ShellCompDirectiveNoFileComp)
	if err := c.RegisterFlagCompletionFunc(name, complete); err != nil {
		panic(err) // the flag was added above
	}
}

// duration is the value of a flag that takes the durations of limits.yaml: 500ms, 24h, 30d.
type duration time.Duration

// DurationVar adds a flag that takes the durations of limits.yaml.
func DurationVar(fs *pflag.FlagSet, value *time.Duration, name string, standard time.Duration, usage string) {
	*value = standard
	fs.Var((*duration)(value), name, usage)
}

func (d *duration) Set(text string) error {
	read, ok := durations.Parse(text)
	if !ok && text != "0" {
		return fmt.Errorf("%q is no duration, such as 500ms, 90s, 24h or 30d", text)
	}
	*d = duration(read)
	return nil
}

func (d *duration) String() string {
	if *d == 0 {
		return "0" // which the help does not show as a default
	}
	return durations.Format(time.Duration(*d))
}

func (d *duration) Type() string { return "duration" }

// TimeVar adds a flag that takes a time of RFC 3339.
func TimeVar(fs *pflag.FlagSet, value *time.Time, name, usage string) {
	fs.Func(name, usage, func(text string) (err error) {
		if *value, err = time.Parse(time.RFC3339Nano, text); err != nil {
			return errors.New("not an RFC 3339 time, such as 2030-01-31T12:00:00Z")
		}
		return nil
	})
}

// environment reads flags from environment variables.
type environment struct {
	getenv func(string) string
	from   map[string]string // the variable that a flag was read from
}

// variablePrefix begins the name of every environment variable that the programs read for a flag.
const variablePrefix = "HEADWAY_"

// placeFlags are the flags that commands below the root read from the environment: which Redis, limits and
// worker, as whom, within which bounds, and how to print. What such a command does is typed: a variable of a
// whole machine must not change a limit, or a task. The root of a program, a service, reads all of its flags.
var placeFlags = []string{"redis", "limits", "app", "listen", "as", "within", "max-priority", "max-timeout", "allow-method", "json"}

// variables returns what is looked up for a flag of c, the first that is set. REDIS_URL is what hosting services set.
func variables(c *cobra.Command, flag string) []string {
	switch {
	case flag == "help" || flag == "version" || c.HasParent() && !slices.Contains(placeFlags, flag):
		return nil
	case flag == "redis":
		return []string{variable(flag), "REDIS_URL"}
	}
	return []string{variable(flag)}
}

// variable returns the environment variable of a flag: HEADWAY_MAX_TIMEOUT of max-timeout.
func variable(flag string) string {
	return variablePrefix + strings.ToUpper(strings.ReplaceAll(flag, "-", "_"))
}

// describeVariables adds to the help of flags which variables they are read from.
func describeVariables(c *cobra.Command) {
	add := func(f *pflag.Flag) {
		if names := variables(c, f.Name); names != nil {
			f.Usage += " [" + names[0] + "]"
		}
	}
	c.PersistentFlags().VisitAll(add)
	c.Flags().VisitAll(add)
}

// read sets the flags of c that were not given and whose variable is not blank.
func (e environment) read(c *cobra.Command) error {
	var faults []error
	c.Flags().VisitAll(func(f *pflag.Flag) {
		// An empty -redis is most likely an unset variable of a script, and no wish for the default.
		if f.Changed && (f.Name != "redis" || f.Value.String() != "") {
			return
		}
		for _, name := range variables(c, f.Name) {
			value := strings.TrimSpace(e.getenv(name))
			if value == "" {
				continue
			}
			e.from[f.Name] = name
			if err := setFrom(f.Value, value); err != nil {
				faults = append(faults, Errorf(c.CommandPath()+" -h", "invalid value %q for %s: %v", value, name, err))
			}
			return
		}
	})
	return errors.Join(faults...)
}

// setFrom sets a flag; the variable of a flag that may be given more than once is a list with commas.
func setFrom(v pflag.Value, value string) error {
	list, is := v.(pflag.SliceValue)
	if !is {
		return v.Set(value)
	}
	parts := strings.Split(value, ",")
	for i := range parts {
		parts[i] = strings.TrimSpace(parts[i])
	}
	return list.Replace(parts)
}

// note says which of the flags that an error names were read from the environment, nil for none.
func (e environment) note(err error) error {
	words := strings.FieldsFunc(err.Error(), func(r rune) bool { return r != '-' && (r < 'a' || r > 'z') })
	for _, flag := range slices.Sorted(maps.Keys(e.from)) {
		if slices.Contains(words, "-"+flag) {
			return fmt.Errorf("-%s was read from %s", flag, e.from[flag])
		}
	}
	return nil
}

// UnknownVariables returns the names in environ, which is as os.Environ returns it, that begin with HEADWAY_ and
// belong to no flag of the program, each with the nearest that does. Others of known are no flags. What
// Kubernetes sets for a Service, such as HEADWAY_REDIS_SERVICE_HOST, is left out.
func UnknownVariables(root *cobra.Command, environ []string, known ...string) (unknown [][2]string) {
	for _, c := range tree(root) {
		c.Flags().VisitAll(func(f *pflag.Flag) { known = append(known, variables(c, f.Name)...) })
	}
	for _, flag := range placeFlags { // other programs read them
		known = append(known, variable(flag))
	}
	words := strings.Split(strings.ToLower(strings.Join(known, " ")), " ")
	for _, setting := range environ {
		name, value, _ := strings.Cut(setting, "=")
		service := strings.Contains(name, "_SERVICE_") || strings.Contains(name, "_PORT_") || strings.Contains(value, "://") && strings.HasSuffix(name, "_PORT")
		if strings.HasPrefix(name, variablePrefix) && !slices.Contains(known, name) && !service {
			unknown = append(unknown, [2]string{name, strings.ToUpper(diag.Nearest(name, words))})
		}
	}
	return unknown
}
