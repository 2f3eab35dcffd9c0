package main

import (
	"flag"
	"fmt"
	"regexp"
	"strings"
	"testing"

	"github.com/headway-go/headway/cmd/internal/cli"
	"github.com/headway-go/headway/queue"
	"github.com/headway-go/headway/queue/schedule"
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

func TestVersion(t *testing.T) {
	t.Parallel()
	for _, arg := range []string{"version", "-version", "--version"} {
		if got := program(t, "", "", arg); got != (outcome{stdout: "enqueue " + cli.Version() + "\n"}) {
			t.Errorf("%+v", got)
		}
	}
}

// TestUsageNamesFlags holds the flags and the defaults that the texts name
// against those that the program has.
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
	const days = "(default 24h)"
	if defaultRemember.Hours() != 24 || !strings.Contains(usageHTTP, days) || !strings.Contains(usageBatch, days) {
		t.Error("-remember")
	}
	for _, text := range []string{
		fmt.Sprintf("request method (default %s)", queue.DefaultMethod),
		fmt.Sprintf("(default %v);\n", queue.DefaultTimeout),
		fmt.Sprintf("each limit (default %d)", queue.DefaultCost),
		fmt.Sprintf("no failure (default %d)", queue.DefaultMaxRetry),
		fmt.Sprintf("queue (default %s)", queue.DefaultQueue),
		cli.EmbeddedURL,
	} {
		if !strings.Contains(usageHTTP, text) {
			t.Errorf("not in the usage of http: %q", text)
		}
	}
	if !strings.Contains(usageBatch, cli.EmbeddedURL) {
		t.Error("the default of -redis is not in the usage of batch")
	}
}

// TestUsageExamples runs the examples of the texts as far as Redis.
func TestUsageExamples(t *testing.T) {
	t.Parallel()
	word := regexp.MustCompile(`'[^']*'|"[^"]*"|\S+`)
	ran := 0
	for _, text := range []string{usage, usageHTTP, usageBatch, usageSchedules} {
		_, examples, _ := strings.Cut(text, "Examples:\n")
		for line := range strings.Lines(examples) {
			_, command, ok := strings.Cut(line, "enqueue ")
			if !ok || !strings.HasPrefix(line, "  ") {
				continue
			}
			words := word.FindAllString(command, -1)
			for i, w := range words {
				words[i] = strings.Trim(w, `'"`)
			}
			ran++
			if words[0] == "http" {
				f := newHTTPFlags("x")
				if err := f.set.Parse(words[1:]); err != nil {
					t.Errorf("%s: %v", line, err)
				}
				if task, err := f.read(); err != nil || task.Validate() != nil {
					t.Errorf("%s: %v %v", line, err, task.Validate())
				}
				continue
			}
			set := newBatchFlags("x").set
			if words[0] == "schedules" {
				set = newSchedulesFlags("x").set
			}
			if err := set.Parse(words[1:]); err != nil || set.NArg() != 1 {
				t.Errorf("%s: %v", line, err)
			}
		}
	}
	if ran != 13 {
		t.Errorf("%d examples ran", ran)
	}
	_, line, _ := strings.Cut(usageBatch, "A line:\n  ")
	line, _, _ = strings.Cut(line, "\n")
	if _, err := queue.ParseLine([]byte(line)); err != nil {
		t.Errorf("the line of the usage: %v", err)
	}
	_, sample, _ := strings.Cut(usageSchedules, "A schedule:\n")
	sample, _, _ = strings.Cut(sample, "\n\n")
	if _, err := schedule.Parse("the schedule of the usage", []byte(sample)); err != nil {
		t.Error(err)
	}
	known := regexp.MustCompile(`(?m)(?:^  |   )([a-z_]+) +(?:"http|the path|of type|of other|default a|\(default|whole|duration|RFC)`)
	var fields []string
	_, list, _ := strings.Cut(usageBatch, "A line:\n")
	for _, match := range known.FindAllStringSubmatch(list, -1) {
		fields = append(fields, match[1])
	}
	// What ParseLine itself says that a line has.
	_, err := queue.ParseLine([]byte(`{"x":1}`))
	for _, field := range fields {
		if !strings.Contains(err.Error(), field) {
			t.Errorf("%s is no field", field)
		}
	}
	if len(fields) != 13 {
		t.Errorf("fields %q", fields)
	}
}
