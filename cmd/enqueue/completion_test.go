package main

import (
	"flag"
	"os/exec"
	"regexp"
	"strings"
	"testing"

	"github.com/headway-go/headway/cmd/internal/cli"
)

// Each subcommand and flag is in the script of each shell, with words that say what it
// is, and bash reads its script.
func TestCompletion(t *testing.T) {
	t.Parallel()
	commands := newEnqueue().All()
	if len(commands) != 5 {
		t.Errorf("%d commands", len(commands))
	}
	for _, shell := range cli.Shells {
		got := program(t, "", "", "completion", shell)
		if got.code != cli.ExitOK || got.stderr != "" {
			t.Fatalf("%s: %+v", shell, got)
		}
		script := got.stdout
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
