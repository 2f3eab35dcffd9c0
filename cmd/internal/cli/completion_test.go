package cli

import (
	"bytes"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

var update = flag.Bool("update", false, "rewrite the golden files")

// tree is a program with subcommands, a word that has an apostrophe and flags of each kind.
func tree() *Command {
	root := newSample(true).Command
	get := NewCommand("p get", "Usage: p get\n\n  one     the user's own; no more\n  all     every one\n\n  -from D           of get: where to\n                    begin, such as 1\n")
	get.Mixed, get.About, get.Words = true, "print it", []string{"one", "all"}
	get.Flags.String("from", "", "")
	put := NewCommand("p put", "")
	put.About, put.Files = "write it", true
	put.Flags.Bool("force", false, "")
	root.Commands = []*Command{get, put, NewCompletion("p")}
	return root
}

// The scripts are what they were when each was tried in its shell: bash 5.2, zsh 5.9 and fish 3.6.
func TestCompletionScripts(t *testing.T) {
	t.Parallel()
	for _, shell := range Shells {
		path, got := filepath.Join("testdata", "completion."+shell), Completion(shell, tree())
		if *update {
			must(t, os.WriteFile(path, []byte(got), 0o600))
		}
		want, err := os.ReadFile(path)
		if err != nil {
			t.Fatalf("%v; make it with go test ./cmd/internal/cli -update, and try it in %s", err, shell)
		}
		if got != string(want) {
			t.Errorf("not what %s holds; try it in %s, then go test ./cmd/internal/cli -update\n%s", path, shell, got)
		}
	}
}

// Bash offers what may follow.
func TestCompletionInBash(t *testing.T) {
	t.Parallel()
	script := Completion("bash", tree())
	for typed, want := range map[string]string{
		"p ":                   "get put completion",
		"p g":                  "get",
		"p -le":                "-level",
		"p -level ":            "info debug",
		"p -level d":           "debug",
		"p -n ":                "", // any value
		"p -limits ":           "", // a file
		"p -n get ":            "get put completion",
		"p -json get ":         "one all",
		"p get o":              "one",
		"p get -":              "-from -h",
		"p get one -f":         "-from",
		"p get -from put -":    "-from -h",
		"p put ":               "",
		"p put -":              "-force -h",
		"p put -force -":       "-force -h",
		"p completion ":        "bash zsh fish",
		"p completion bash -h": "-h",
	} {
		words := strings.Split(typed, " ")
		ask := fmt.Sprintf("\nCOMP_WORDS=(%s) COMP_CWORD=%d; _headway_p; echo \"${COMPREPLY[*]}\"\n", "'"+strings.Join(words, "' '")+"'", len(words)-1)
		var out, errs bytes.Buffer
		cmd := exec.Command("bash", "--norc", "-c", script+ask)
		cmd.Stdout, cmd.Stderr = &out, &errs
		if err := cmd.Run(); err != nil || errs.Len() > 0 {
			t.Fatalf("%q: %v %s", typed, err, errs.String())
		}
		if got := strings.TrimSuffix(out.String(), "\n"); got != want {
			t.Errorf("%q: got %q, want %q", typed, got, want)
		}
	}
}

func TestRunCompletion(t *testing.T) {
	t.Parallel()
	const usage = "p completion: name one shell: bash, zsh, fish\ntry: p completion bash\n"
	for args, want := range map[string]struct {
		code           int
		stdout, stderr string
	}{
		"bash":      {ExitOK, Completion("bash", tree()), ""},
		"-h":        {ExitOK, CompletionUsage("p"), ""},
		"tcsh":      {ExitUsage, "", usage},
		"bash fish": {ExitUsage, "", usage},
		"-x":        {ExitUsage, "", "p completion: flag provided but not defined: -x\ntry: p completion -h\n"},
	} {
		var stdout, stderr bytes.Buffer
		code := RunCompletion(tree(), strings.Fields(args), &stdout, &stderr)
		if code != want.code || stdout.String() != want.stdout || stderr.String() != want.stderr {
			t.Errorf("%q: %d %q %q", args, code, stdout.String(), stderr.String())
		}
	}
}
