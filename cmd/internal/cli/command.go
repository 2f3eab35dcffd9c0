package cli

import (
	"bytes"
	"errors"
	"flag"
	"fmt"
	"io"
	"regexp"
	"slices"
	"strings"

	"github.com/headway-go/headway/internal/diag"
)

// Command is a program or one of its subcommands, as it is typed: its flags, its help and
// what may follow. It is for one run and one goroutine.
type Command struct {
	Name  string // the words that call it, such as "worker limits"
	Usage string // the help text, without the variables of the flags
	Flags *flag.FlagSet

	// Mixed says that flags may stand after the words as well as before them.
	Mixed bool
	// Service says that every flag has a variable. Other commands have those of oneShot.
	Service bool

	// What may follow, for Completion.
	About    string     // what it does, in a few words
	Words    []string   // that may follow literally
	Files    bool       // file names may follow
	Commands []*Command // what may follow and has flags of its own

	from map[string]string // the variable that a flag was read from, by the flag's name
}

// NewCommand returns a command without flags.
func NewCommand(name, usage string) *Command {
	fs := flag.NewFlagSet(name, flag.ContinueOnError)
	fs.SetOutput(io.Discard) // the flag package would print its own usage
	fs.Usage = func() {}
	return &Command{Name: name, Usage: usage, Flags: fs}
}

// Parse reads args, and the environment for flags that args do not give, and returns the
// words that are no flags. When done is true the program ends with code: help was asked for
// and went to stdout, or something was wrong and stderr says what.
func (c *Command) Parse(args []string, getenv func(string) string, stdout, stderr io.Writer) (words []string, code int, done bool) {
	words, err := c.parseArgs(args)
	if errors.Is(err, flag.ErrHelp) {
		if _, err := io.WriteString(stdout, c.Help()); err != nil {
			return nil, ExitFailed, true
		}
		return nil, ExitOK, true
	}
	if err != nil {
		err = &Error{What: err.Error(), Try: c.Name + " -h"}
	} else {
		err = c.readEnvironment(getenv)
	}
	if err != nil {
		c.Fail(stderr, c.Name, err)
		return nil, ExitUsage, true
	}
	return words, ExitOK, false
}

// parseArgs returns the words among args. What follows "--" is words alone.
func (c *Command) parseArgs(args []string) (words []string, err error) {
	for {
		if err := c.Flags.Parse(args); err != nil {
			return nil, c.meant(err)
		}
		rest := c.Flags.Args()
		read := len(args) - len(rest)
		if !c.Mixed || len(rest) == 0 || read > 0 && args[read-1] == "--" {
			return append(words, rest...), nil
		}
		words, args = append(words, rest[0]), rest[1:]
	}
}

// meant adds the flag that is nearest to one that does not exist.
func (c *Command) meant(err error) error {
	name, unknown := strings.CutPrefix(err.Error(), "flag provided but not defined: -")
	if !unknown {
		return err
	}
	var names []string
	c.Flags.VisitAll(func(f *flag.Flag) { names = append(names, f.Name) })
	return fmt.Errorf("%w%s", err, DidYouMean(name, "-", names))
}

// DidYouMean returns "; did you mean " and the nearest of some words, after a prefix. It returns nothing if
// none is near.
func DidYouMean(word, prefix string, words []string) string {
	if near := diag.Nearest(word, words); near != "" {
		return "; did you mean " + prefix + near + "?"
	}
	return ""
}

// Fail prints err as the function Fail does. A flag that was read from the environment is
// called by its variable, which is what there is to change.
func (c *Command) Fail(stderr io.Writer, prog string, err error) {
	var b bytes.Buffer
	writeFault(&b, prog, err)
	text := b.String()
	for name, variable := range c.from {
		inTry := regexp.MustCompile(`(?m)^(try: (?:.* )?)-` + regexp.QuoteMeta(name) + ` `)
		for inTry.MatchString(text) {
			text = inTry.ReplaceAllString(text, "${1}"+variable+"=")
		}
		elsewhere := regexp.MustCompile(`(?m)(^|[ (])-` + regexp.QuoteMeta(name) + `([^a-z-]|$)`)
		text = elsewhere.ReplaceAllString(text, "${1}"+variable+"${2}")
	}
	_, _ = io.WriteString(stderr, text) // one write, so that logs do not cut it in two
}

// entry is the start of a flag's part of a help text.
var entry = regexp.MustCompile(`^  -([a-z-]+)( |$)`)

const (
	helpWidth  = 80
	helpIndent = "                    "
)

// Help returns the help text, with the variable of each flag at the end of its part.
func (c *Command) Help() string {
	lines := strings.Split(strings.TrimSuffix(c.Usage, "\n"), "\n")
	var b strings.Builder
	variable, found := "", false
	for i, line := range lines {
		if m := entry.FindStringSubmatch(line); m != nil {
			variable = c.shown(m[1])
		}
		b.WriteString(line)
		if variable != "" && (i+1 == len(lines) || !strings.HasPrefix(lines[i+1], "     ")) {
			switch note := " [" + variable + "]"; {
			case len([]rune(line+note)) <= helpWidth:
				b.WriteString(note)
			default:
				b.WriteString("\n" + helpIndent + note[1:])
			}
			variable, found = "", true
		}
		b.WriteByte('\n')
	}
	if found {
		b.WriteString("\n[NAME] is the environment variable that stands for the flag if it is not given.\n")
		if c.hasList() {
			b.WriteString("If a flag may be given more than once, its variable holds a list with commas.\n")
		}
	}
	return b.String()
}

// shown is the variable of a flag that the command has, "" for none.
func (c *Command) shown(name string) string {
	if c.Flags.Lookup(name) == nil || !c.hasVariable(name) {
		return ""
	}
	return Variable(name)
}

func (c *Command) hasList() (found bool) {
	c.Flags.VisitAll(func(f *flag.Flag) {
		_, list := f.Value.(*List)
		found = found || list && c.hasVariable(f.Name)
	})
	return found
}

// List is the value of a flag that may be given more than once. Its variable has the
// values with commas between them.
type List struct {
	values *[]string
	check  func(string) error // nil: any value
}

// ListVar adds a flag that may be given more than once. check refuses a value, and may be nil.
func ListVar(fs *flag.FlagSet, values *[]string, name string, check func(string) error) {
	fs.Var(&List{values, check}, name, "")
}

// String returns the values with commas between them.
func (l *List) String() string {
	if l.values == nil { // the flag package asks a zero value for its text
		return ""
	}
	return strings.Join(*l.values, ",")
}

// Set adds a value.
func (l *List) Set(value string) error {
	if l.check != nil {
		if err := l.check(value); err != nil {
			return err
		}
	}
	*l.values = append(*l.values, value)
	return nil
}

// Choice is the value of a flag that has one of few values. The program checks it with the
// rest, so that all faults are reported at once.
type Choice struct {
	value   *string
	choices []string
}

// ChoiceVar adds a flag whose values Completion knows; one that ends in "=" needs a text after it.
func ChoiceVar(fs *flag.FlagSet, value *string, name, standard string, choices ...string) {
	*value = standard
	fs.Var(&Choice{value, choices}, name, "")
}

// String returns the value.
func (c *Choice) String() string {
	if c.value == nil {
		return ""
	}
	return *c.value
}

// Set takes any value.
func (c *Choice) Set(value string) error {
	*c.value = value
	return nil
}

// file is the value of a flag that names a file.
type file struct{ path *string }

// FileVar adds a flag that names a file.
func FileVar(fs *flag.FlagSet, path *string, name string) {
	fs.Var(file{path}, name, "")
}

func (f file) String() string {
	if f.path == nil {
		return ""
	}
	return *f.path
}

func (f file) Set(path string) error {
	*f.path = path
	return nil
}

// All returns the command and all below it.
func (c *Command) All() []*Command {
	all := []*Command{c}
	for _, sub := range c.Commands {
		all = append(all, sub.All()...)
	}
	return all
}

func (c *Command) hasVariable(name string) bool {
	if c.Service {
		return name != "version"
	}
	return slices.Contains(oneShot, name)
}
