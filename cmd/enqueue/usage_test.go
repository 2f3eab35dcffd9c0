package main

import (
	"flag"
	"regexp"
	"strings"
	"testing"

	"github.com/headway-go/headway/cmd/internal/cli"
)

func TestHelp(t *testing.T) {
	t.Parallel()
	for name, args := range map[string][]string{
		"help.golden": {"-h"}, "help_http.golden": {"http", "-h"}, "help_batch.golden": {"batch", "-h"},
		"help_schedules.golden": {"schedules", "-h"},
	} {
		got := program(t, "", "", args...)
		if got.code != cli.ExitOK || got.stderr != "" {
			t.Errorf("%q: %+v", args, got)
		}
		golden(t, name, got.stdout)
	}
	for _, args := range [][]string{{"help"}, {"--help"}, {"-help"}} {
		if got := program(t, "", "", args...); got.stdout != usage || got.code != cli.ExitOK {
			t.Errorf("%q: %+v", args, got)
		}
	}
	for _, text := range []string{usage, usageHTTP, usageBatch, usageSchedules} {
		for line := range strings.Lines(text) {
			if len([]rune(line)) > 120 && !strings.HasPrefix(line, "  {") {
				t.Errorf("too wide: %s", line)
			}
		}
	}
}

// TestUsageNamesFlags holds the flags that the texts name against those that the program has.
func TestUsageNamesFlags(t *testing.T) {
	t.Parallel()
	named := regexp.MustCompile(`(?m)^  -([a-z-]+)`)
	for text, fs := range map[string]*flag.FlagSet{
		usageHTTP: newHTTPFlags("x").set, usageBatch: newBatchFlags("x").set, usageSchedules: newSchedulesFlags("x").set,
	} {
		inText := map[string]bool{}
		for _, match := range named.FindAllStringSubmatch(text, -1) {
			inText[match[1]] = true
			if fs.Lookup(match[1]) == nil {
				t.Errorf("-%s is no flag", match[1])
			}
		}
		fs.VisitAll(func(f *flag.Flag) {
			if !inText[f.Name] {
				t.Errorf("-%s is not in the usage", f.Name)
			}
		})
	}
}
