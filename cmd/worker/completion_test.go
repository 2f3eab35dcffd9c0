package main

import (
	"bytes"
	"flag"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/headway-go/headway/cmd/internal/cli"
)

// Each subcommand, verb and flag is in the script of each shell, with words that say what it
// is, and bash reads its script.
func TestCompletion(t *testing.T) {
	t.Parallel()
	root, _ := newWorker()
	commands := root.All()
	if len(commands) != 10+len(limitsVerbs)+len(tasksVerbs) {
		t.Errorf("%d commands", len(commands))
	}
	for _, shell := range cli.Shells {
		var out, errs bytes.Buffer
		if code := run(t.Context(), []string{"completion", shell}, noEnv, &out, &errs); code != cli.ExitOK {
			t.Fatalf("%s: exit %d, %s", shell, code, errs.String())
		}
		script := out.String()
		for _, c := range commands {
			if !strings.Contains(script, "'"+c.Name+"'") && !strings.Contains(script, "'"+c.Name+":'") && !strings.Contains(script, `'\''`+c.Name+`'\''`) {
				t.Errorf("%s: no %s", shell, c.Name)
			}
			c.Flags.VisitAll(func(f *flag.Flag) {
				if !regexp.MustCompile(offerOf(shell, c.Name, f.Name)).MatchString(script) {
					t.Errorf("%s: %s has no -%s, or no words for it", shell, c.Name, f.Name)
				}
			})
		}
		if shell == "bash" {
			bash := exec.Command("bash", "-n")
			bash.Stdin = strings.NewReader(script)
			if said, err := bash.CombinedOutput(); err != nil || len(said) > 0 {
				t.Errorf("bash -n: %v %s", err, said)
			}
		}
	}
	if _, code, _ := parseOptions([]string{"completion"}, noEnv, &bytes.Buffer{}, &bytes.Buffer{}); code != cli.ExitUsage {
		t.Error("completion is an argument of worker itself")
	}
	for _, c := range root.Commands {
		if subcommand(strings.TrimPrefix(c.Name, "worker ")) == nil {
			t.Errorf("%s does not run", c.Name)
		}
	}
}

// offerOf matches where a script offers a flag of a command.
func offerOf(shell, command, name string) string {
	command, name = regexp.QuoteMeta(command), "-"+regexp.QuoteMeta(name)
	return map[string]string{
		"bash": `(?m)'` + command + `:'-\*\) .*-W '([^']* )?` + name + `[ ']`,
		"zsh":  `\('` + command + `:'-\*\)\n\s+offers=\(\n(\s+'-[^\n]+\n)*\s+'` + name + `:[A-Za-z0-9]`,
		"fish": `(?m)_at '\\''` + command + `'\\''' -o ` + name[1:] + ` (-\S.*)?-d '[A-Za-z0-9]`,
	}[shell]
}

// The verbs that the help names are those that there are.
func TestCompletionKnowsVerbs(t *testing.T) {
	t.Parallel()
	limits, _ := newLimits()
	for _, c := range limits.Commands {
		if c.About == "" {
			t.Errorf("%s: the help does not say what it does", c.Name)
		}
	}
	check := limits.Commands[slices.IndexFunc(limits.Commands, func(c *cli.Command) bool { return c.Name == "worker limits check" })]
	if !check.Files || check.Flags.Lookup("strict") == nil || check.Flags.Lookup("redis") != nil {
		t.Errorf("worker limits check: %+v", check)
	}
}
