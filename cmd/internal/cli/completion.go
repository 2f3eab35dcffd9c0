package cli

import (
	"cmp"
	"flag"
	"fmt"
	"io"
	"regexp"
	"slices"
	"strings"
)

// Shells are those that Completion writes scripts for.
var Shells = []string{"bash", "zsh", "fish"}

// CompletionUsage is what "completion -h" of a program prints.
func CompletionUsage(prog string) string {
	return strings.ReplaceAll(`Usage: PROG completion bash | zsh | fish

Prints a script that completes the subcommands, flags and values of PROG. It
also completes headway-PROG, the program's name in a release.

  bash   source <(PROG completion bash), in ~/.bashrc
  zsh    source <(PROG completion zsh), in ~/.zshrc after compinit; or write it
         to a file _PROG in a directory of $fpath
  fish   PROG completion fish > ~/.config/fish/completions/PROG.fish

Exit codes: 0 done, 1 it could not be written, 2 bad usage.
`, "PROG", prog)
}

// NewCompletion returns the command "completion" of a program.
func NewCompletion(prog string) *Command {
	c := NewCommand(prog+" completion", CompletionUsage(prog))
	c.Mixed, c.About, c.Words = true, "print a script that completes commands and flags", Shells
	return c
}

// RunCompletion is the command "completion" of the program root.
func RunCompletion(root *Command, args []string, stdout, stderr io.Writer) int {
	c := NewCompletion(root.Name)
	words, code, done := c.Parse(args, func(string) string { return "" }, stdout, stderr)
	if done {
		return code
	}
	if len(words) != 1 || !slices.Contains(Shells, words[0]) {
		c.Fail(stderr, c.Name, Errorf(c.Name+" bash", "name one shell: %s", strings.Join(Shells, ", ")))
		return ExitUsage
	}
	if _, err := io.WriteString(stdout, Completion(words[0], root)); err != nil {
		c.Fail(stderr, c.Name, fmt.Errorf("cannot write the script: %w", err))
		return ExitFailed
	}
	return ExitOK
}

// Completion returns the script by which a shell completes the commands of the program
// root, their flags, and values of flags that are one of few. It panics for another shell
// than those of Shells.
func Completion(shell string, root *Command) string {
	s := script{root: root, function: "_headway_" + root.Name}
	switch shell {
	case "bash":
		s.bash()
	case "zsh":
		s.zsh()
	case "fish":
		s.fish()
	default:
		panic("cli: no completion for " + shell)
	}
	return s.text.String()
}

// script is a completion script while it is written. Each finds the command that is typed
// by the words before the cursor, leaving out flags and their values, and offers what may follow.
type script struct {
	root     *Command
	function string
	text     strings.Builder
}

func (s *script) line(format string, args ...any) {
	fmt.Fprintf(&s.text, format+"\n", args...)
}

func (s *script) bash() {
	prog := s.root.Name
	s.line("# Completion of %s for bash, by: %s completion bash", prog, prog)
	s.line("%s() {", s.function)
	s.line("\tlocal current=${COMP_WORDS[COMP_CWORD]} previous=${COMP_WORDS[COMP_CWORD-1]} command=%s i", prog)
	s.line("\tfor ((i = 1; i < COMP_CWORD; i++)); do")
	s.line("\t\tcase \"$command ${COMP_WORDS[i]}\" in")
	s.line("\t\t%s) ((i++)) ;;", patterns(s.valued()))
	s.line("\t\t%s) command+=\" ${COMP_WORDS[i]}\" ;;", patterns(s.below()))
	s.line("\t\tesac")
	s.line("\tdone")
	s.line("\tCOMPREPLY=()") // where it stays empty, bash offers files: -o default
	s.line("\tcase \"$command $previous\" in")
	for _, c := range s.choices() {
		s.line("\t%s) COMPREPLY=($(compgen -W %s -- \"$current\")) && return ;;", quote(c.at), quote(strings.Join(c.of, " ")))
	}
	s.line("\tesac")
	s.line("\tcase \"$command $previous\" in")
	s.line("\t%s) return ;;", patterns(s.valued()))
	s.line("\tesac")
	s.line("\tcase \"$command:$current\" in")
	for _, c := range s.root.All() {
		s.line("\t%s-*) COMPREPLY=($(compgen -W %s -- \"$current\")) ;;", quote(c.Name+":"), quote("-"+strings.Join(names(c.flags()), " -")))
		if words := names(c.words()); len(words) > 0 {
			s.line("\t%s*) COMPREPLY=($(compgen -W %s -- \"$current\")) ;;", quote(c.Name+":"), quote(strings.Join(words, " ")))
		}
	}
	s.line("\tesac")
	s.line("}")
	s.line("complete -o default -F %s %s headway-%s", s.function, prog, prog)
}

func (s *script) zsh() {
	prog := s.root.Name
	s.line("#compdef %s headway-%s", prog, prog)
	s.line("# Completion of %s for zsh, by: %s completion zsh", prog, prog)
	s.line("%s() {", s.function)
	s.line("\tlocal current=$words[CURRENT] previous=$words[CURRENT-1] command=%s i", prog)
	s.line("\tlocal -a offers")
	s.line("\tfor ((i = 2; i < CURRENT; i++)); do")
	s.line("\t\tcase \"$command $words[i]\" in")
	s.line("\t\t(%s) ((i++)) ;;", patterns(s.valued()))
	s.line("\t\t(%s) command+=\" $words[i]\" ;;", patterns(s.below()))
	s.line("\t\tesac")
	s.line("\tdone")
	s.line("\tcase \"$command $previous\" in")
	for _, c := range s.choices() {
		s.line("\t(%s) compadd -- %s; return ;;", quote(c.at), quoteAll(c.of))
	}
	if files := s.files(); len(files) > 0 {
		s.line("\t(%s) _files; return ;;", patterns(files))
	}
	s.line("\t(%s) _message value; return ;;", patterns(s.valued()))
	s.line("\tesac")
	s.line("\tcase \"$command:$current\" in")
	for _, c := range s.root.All() {
		s.line("\t(%s-*)", quote(c.Name+":"))
		s.line("\t\toffers=(")
		for _, f := range c.flags() {
			s.line("\t\t\t%s", quote("-"+f.name+":"+f.about))
		}
		s.line("\t\t)")
		s.line("\t\t_describe -o flag offers ;;")
		words := c.words()
		switch {
		case c.Files:
			s.line("\t(%s*) _files ;;", quote(c.Name+":"))
		case len(words) > 0:
			s.line("\t(%s*)", quote(c.Name+":"))
			s.line("\t\toffers=(")
			for _, w := range words {
				s.line("\t\t\t%s", quote(w.name+":"+w.about))
			}
			s.line("\t\t)")
			s.line("\t\t_describe command offers ;;")
		}
	}
	s.line("\tesac")
	s.line("}")
	s.line("if [[ $funcstack[1] == _%s ]]; then", prog) // loaded from $fpath, when first asked
	s.line("\t%s \"$@\"", s.function)
	s.line("else")
	s.line("\tcompdef %s %s headway-%s", s.function, prog, prog)
	s.line("fi")
}

func (s *script) fish() {
	prog := s.root.Name
	at := "_" + s.function + "_at"
	s.line("# Completion of %s for fish, by: %s completion fish", prog, prog)
	s.line("function %s --description 'whether this command is typed'", at)
	s.line("\tset -l command %s", prog)
	s.line("\tset -l skip 0")
	s.line("\tset -l typed (commandline -opc)")
	s.line("\tfor word in $typed[2..-1]")
	s.line("\t\tif test $skip = 1")
	s.line("\t\t\tset skip 0")
	s.line("\t\t\tcontinue")
	s.line("\t\tend")
	s.line("\t\tswitch \"$command $word\"")
	s.line("\t\t\tcase %s", quoteAll(s.valued()))
	s.line("\t\t\t\tset skip 1")
	s.line("\t\t\tcase %s", quoteAll(s.below()))
	s.line("\t\t\t\tset command \"$command $word\"")
	s.line("\t\tend")
	s.line("\tend")
	s.line("\ttest \"$command\" = \"$argv[1]\"")
	s.line("end")
	for _, c := range s.root.All() {
		begin := fmt.Sprintf("complete -c %s -n %s", prog, quote(at+" "+quote(c.Name)))
		if !c.Files {
			s.line("%s -f", begin)
		}
		for _, w := range c.words() {
			s.line("%s -a %s -d %s", begin, quote(w.name), quote(w.about))
		}
		for _, f := range c.flags() {
			takes := ""
			switch v := f.value.(type) {
			case *Choice:
				takes = " -x -a " + quote(strings.Join(v.choices, " "))
			case file:
				takes = " -r -F"
			default:
				if f.valued() {
					takes = " -x"
				}
			}
			s.line("%s -o %s%s -d %s", begin, f.name, takes, quote(f.about))
		}
	}
	s.line("complete -c headway-%s -w %s", prog, prog)
}

// offer is a word or flag that may follow.
type offer struct {
	name, about string
	value       flag.Value // of a flag
}

func (o offer) valued() bool { return o.value != nil && !isBool(o.value) }

func names(offers []offer) []string {
	list := make([]string, len(offers))
	for i, o := range offers {
		list[i] = o.name
	}
	return list
}

// flags are the flags of a command, and -h.
func (c *Command) flags() []offer {
	list := []offer{{name: "h", about: "print the help"}}
	c.Flags.VisitAll(func(f *flag.Flag) {
		list = append(list, offer{f.Name, cmp.Or(f.Usage, aboutFlag(c.Usage, f.Name)), f.Value})
	})
	slices.SortFunc(list, func(a, b offer) int { return strings.Compare(a.name, b.name) })
	return list
}

// words are the subcommands of a command, and other words that may follow.
func (c *Command) words() (list []offer) {
	for _, sub := range c.Commands {
		list = append(list, offer{name: strings.TrimPrefix(sub.Name, c.Name+" "), about: sub.About})
	}
	for _, word := range c.Words {
		list = append(list, offer{name: word, about: AboutWord(c.Usage, word)})
	}
	return list
}

// below are all subcommands with their parents: "worker limits".
func (s *script) below() (list []string) {
	for _, c := range s.root.All()[1:] {
		list = append(list, c.Name)
	}
	return list
}

// valued are all flags that take a value, with their commands: "worker -redis".
func (s *script) valued() []string {
	return s.flagsWhere(func(o offer) bool { return o.valued() })
}

// files are those that name a file.
func (s *script) files() []string {
	return s.flagsWhere(func(o offer) bool {
		_, is := o.value.(file)
		return is
	})
}

func (s *script) flagsWhere(wanted func(offer) bool) (list []string) {
	for _, c := range s.root.All() {
		for _, f := range c.flags() {
			if wanted(f) {
				list = append(list, c.Name+" -"+f.name)
			}
		}
	}
	return list
}

// choice is a flag with its command, and the values that it has.
type choice struct {
	at string
	of []string
}

func (s *script) choices() (list []choice) {
	for _, c := range s.root.All() {
		for _, f := range c.flags() {
			if v, is := f.value.(*Choice); is {
				list = append(list, choice{c.Name + " -" + f.name, v.choices})
			}
		}
	}
	return list
}

// aboutFlag is what a help text says of a flag, in a few words.
func aboutFlag(usage, name string) string {
	var text []string
	for line := range strings.Lines(usage) {
		line = strings.TrimSuffix(line, "\n")
		switch m := entry.FindStringSubmatch(line); {
		case m != nil && m[1] == name:
			text = []string{}
			if r := []rune(line); len(r) > len(helpIndent) && r[len(helpIndent)-1] == ' ' {
				text = append(text, string(r[len(helpIndent):]))
			}
		case text == nil:
		case !strings.HasPrefix(line, helpIndent):
			return short(strings.Join(text, " "))
		default:
			text = append(text, strings.TrimSpace(line))
		}
	}
	return short(strings.Join(text, " "))
}

// AboutWord returns what a help text says of a word that may follow, in a few words.
func AboutWord(usage, word string) string {
	m := regexp.MustCompile(`(?m)^  ` + regexp.QuoteMeta(word) + `  +(.*(?:\n    +.*)*)`).FindStringSubmatch(usage)
	if m == nil {
		return ""
	}
	return short(strings.Join(strings.Fields(m[1]), " "))
}

var (
	// ofVerbs begins what a help text says of a flag that only some verbs take.
	ofVerbs = regexp.MustCompile(`^of [a-z, ]+: `)
	clause  = regexp.MustCompile(`(\.|:|;| \(|, such as)( |$)`)
)

// short is the first clause of a text, at most as long as fits beside a name.
func short(text string) string {
	const most = 60
	text = ofVerbs.ReplaceAllString(text, "")
	if at := clause.FindStringIndex(text); at != nil {
		text = text[:at[0]]
	}
	runes := []rune(text)
	if len(runes) <= most {
		return text
	}
	cut := string(runes[:most])
	return cut[:strings.LastIndexByte(cut, ' ')] + " …"
}

// quote writes a word for a shell. Bash, zsh and fish agree on words without a backslash.
func quote(word string) string {
	return "'" + strings.ReplaceAll(word, "'", `'\''`) + "'"
}

func quoteAll(words []string) string {
	quoted := make([]string, len(words))
	for i, w := range words {
		quoted[i] = quote(w)
	}
	return strings.Join(quoted, " ")
}

// patterns are words of which a case matches one.
func patterns(words []string) string {
	quoted := make([]string, len(words))
	for i, w := range words {
		quoted[i] = quote(w)
	}
	return strings.Join(quoted, " | ")
}
