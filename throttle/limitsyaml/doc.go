// Package limitsyaml reads and writes limits.yaml, the form of a policy that people write and Redis keeps.
//
//	rules, err := limitsyaml.Load("limits.yaml")
//	limiter, err := throttle.New(rdb, rules, throttle.Config{})
//
// What limits may be is checked by package policy; this one says where the file has it. Single rules, and what stands at
// other fields, are read and written as they stand in the file, for programs that change limits.
package limitsyaml
