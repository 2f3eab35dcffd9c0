package schemas

import (
	"maps"
	"slices"
)

// What the fields of schedules.yaml say. docs/schedules.md has the same words.
var (
	aboutSchedule = map[string]string{
		"cron":     "five fields: minute, hour, day of month, month, day of week, with *, lists, ranges, steps and names (jan, mon), and L for the last day of the month; or @yearly, @monthly, @weekly, @daily, @hourly",
		"timezone": "a name of the IANA list. Default: UTC",
		"jitter":   "each run is put off by up to this, in whole seconds; every worker computes the same",
		"catch_up": "none, last or all",
		"task":     "the fields of a line that enqueue batch reads, without id, delay and deadline",
	}
	aboutTask = map[string]string{
		"type":      "http, or one that a Go program has registered",
		"scope":     "the path it spends from, such as payments/acme",
		"cost":      "units it takes under each limit, or by unit: {requests: 1, tokens: 1500}. Default: 1",
		"queue":     "Default: default",
		"max_retry": "retries after failures. Default: 25",
		"timeout":   "time that one run may take from its start. Default: 30s for http",
		"max_wait":  "how long it waits for limits at most. Default: as long as it takes",
		"priority":  "of those that wait for the same limits, higher goes first. Default: 0",
		"http":      "the request of a task of type http",
		"payload":   "of other types: any value, handed to the handler as it stands",
	}
	aboutHTTP = map[string]string{
		"method":  "Default: GET",
		"url":     "what to call",
		"headers": "texts by name",
		"body":    "a text",
	}
)

// ScheduleFields are the fields of a schedule, its task and the task's request, and what is said of each.
func ScheduleFields() (list []Field) {
	for _, of := range []struct {
		owner string
		about map[string]string
	}{{"schedule", aboutSchedule}, {"task", aboutTask}, {"http", aboutHTTP}} {
		for _, name := range slices.Sorted(maps.Keys(of.about)) {
			list = append(list, Field{of.owner, name, of.about[name]})
		}
	}
	return list
}

func schedules() object {
	schedule := fields(describe(object{
		"cron": cron(), "timezone": object{"type": "string", "minLength": 1}, "jitter": duration(), "catch_up": word("none", "last", "all"), "task": task(),
	}, aboutSchedule), "cron", "task")
	s := fields(object{"schedules": names(schedule)}, "schedules")
	s["title"] = "schedules.yaml of Headway"
	return s
}

func task() object {
	byUnit := object{"type": "object", "propertyNames": unit(), "additionalProperties": whole(0, maxNumber)}
	request := fields(describe(object{
		"method": object{"type": "string", "minLength": 1}, "url": object{"type": "string", "pattern": "^[Hh][Tt][Tt][Pp][Ss]?://"},
		"headers": object{"type": "object", "additionalProperties": object{"type": "string"}}, "body": object{"type": "string"},
	}, aboutHTTP), "url")
	s := fields(describe(object{
		"type":      object{"type": "string", "minLength": 1},
		"scope":     object{"type": "string", "pattern": "^[^/]+(/[^/]+){0,7}$", "not": object{"pattern": "(^|/)\\*(/|$)"}},
		"cost":      object{"anyOf": []object{whole(1, maxNumber), byUnit}},
		"queue":     object{"type": "string", "maxLength": 128, "pattern": "^[A-Za-z0-9_.-]*$"},
		"max_retry": whole(0, 1_000_000),
		"timeout":   duration(), "max_wait": duration(),
		"priority": whole(-1_000_000, 1_000_000),
		"http":     request,
		"payload":  object{},
	}, aboutTask), "type", "scope")
	s["if"] = is("type", "http")
	s["then"] = object{"required": []string{"http"}, "properties": object{"payload": false}}
	s["else"] = object{"properties": object{"http": false}}
	return s
}
