//! Calls. Functions are expanded in place: one that is named, or each that an address may be, where lanes part by the
//! address that they hold. What the system defines is an effect.

use super::super::ast::{Arg, Function, Var};
use super::text::WRONG_OPERANDS;
use super::{Decoder, Entity, Names, Res, Text};
use crate::exec::inst::*;
use crate::exec::step::Flow;
use crate::exec::system::SystemCall;
use crate::machine::fault::FaultKind;
use crate::machine::lanes::{Lanes, lanes_where};
use crate::machine::origin::Origin;
use crate::machine::types::{Space, Ty};

/// Most nested calls; more count as recursion.
const MAX_DEPTH: usize = 32;
/// Most instructions of a kernel with all calls expanded.
const MAX_CODE: usize = 1 << 20;

/// Results and arguments of a call, bound to the caller's variables.
struct Bound<'a> {
    returns: &'a [Arg],
    params: &'a [Arg],
    variables: Vec<(Space, u64)>,
}

/// Whether a function's results and parameters have the sizes that a prototype says.
fn fits(f: &Function, returns: &[Var], params: &[Var]) -> bool {
    let alike = |a: &[Var], b: &[Var]| a.len() == b.len() && a.iter().zip(b).all(|(a, b)| a.bytes() == b.bytes());
    alike(&f.returns, returns) && alike(&f.params, params)
}

impl<'a> Decoder<'a> {
    /// A function of the module, by name.
    pub(super) fn function(&self, name: &str) -> Option<&'a Function> {
        self.functions.iter().find(|f| f.info.name == name && !f.entry)
    }

    /// `call (results), function, (arguments)`, or `call (results), register, (arguments), prototype or targets`
    pub(super) fn call(&mut self, t: &Text<'_>) -> Res<()> {
        let (returns, rest) = match t.args {
            [Arg::Vector(returns), rest @ ..] => (&returns[..], rest),
            rest => (&[][..], rest),
        };
        let [Arg::Word(target), rest @ ..] = rest else { return t.fail(t.opcode, WRONG_OPERANDS) };
        let (params, rest) = match rest {
            [Arg::Vector(params), rest @ ..] => (&params[..], rest),
            rest => (&[][..], rest),
        };
        let mut variables = Vec::new();
        for arg in returns.iter().chain(params) {
            let variable = if let Arg::Word(name) = arg { self.lookup(name) } else { None };
            match variable {
                Some(Entity::Var { space: space @ Space::Local, address }) => variables.push((space, address)),
                _ => return self.fail(arg.to_string(), "arguments are .param variables"),
            }
        }
        let bound = Bound { returns, params, variables };
        match rest {
            [] if self.named(target).is_some() => t.fail(target, "an indirect call needs a prototype or its targets"),
            [] => self.call_named(target, &bound),
            [Arg::Word(list)] if self.named(target).is_some() => self.call_address(target, list, &bound),
            _ => t.fail(t.opcode, WRONG_OPERANDS),
        }
    }

    fn call_named(&mut self, name: &str, bound: &Bound<'_>) -> Res<()> {
        let Some(f) = self.function(name) else { return self.call_system(name, bound) };
        self.agrees(f, bound)?;
        if self.calls.contains(&f.info.name) {
            return self.fail(name, "a function that calls itself, which the emulator does not run");
        }
        let end = self.branch_around();
        self.expand(f, bound)?;
        self.land(end);
        Ok(())
    }

    fn agrees(&self, f: &Function, bound: &Bound<'_>) -> Res<()> {
        if bound.returns.len() != f.returns.len() || bound.params.len() != f.params.len() {
            return self.fail(&f.info.name, "number of arguments differs from the function's parameters");
        }
        Ok(())
    }

    /// Calls what the system defines.
    fn call_system(&mut self, name: &str, bound: &Bound<'_>) -> Res<()> {
        let Some((call, returns, params)) = SystemCall::named(name) else {
            let what = match name.starts_with("cuda") {
                true => "a function of the device runtime, which the emulator does not have",
                false => "function without a body in this module",
            };
            return self.fail(name, what);
        };
        if bound.returns.len() > returns.len() || bound.params.len() != params.len() {
            return self.fail(name, "number of arguments differs from the function's parameters");
        }
        let (results, arguments) = bound.variables.split_at(bound.returns.len());
        let result = results.first().map(|result| result.1);
        let arguments: Vec<(u64, u32)> =
            arguments.iter().zip(params).map(|(arg, &bytes)| (arg.1, bytes as u32)).collect();
        self.effect(move |cpu, site| cpu.call_system(site, call, result, &arguments));
        // The order of what blocks print or allocate is the schedule's.
        self.turn(true);
        Ok(())
    }

    /// Calls the function whose address a register holds.
    fn call_address(&mut self, target: &str, list: &str, bound: &Bound<'_>) -> Res<()> {
        let candidates: Vec<&Function> = match self.lookup(list) {
            Some(Entity::Prototype(prototype)) => {
                let (returns, params) = &*prototype;
                if bound.returns.len() != returns.len() || bound.params.len() != params.len() {
                    return self.fail(list, "number of arguments differs from the prototype's parameters");
                }
                let taken = self.functions.iter().filter(|f| !f.entry && f.taken);
                taken.filter(|f| fits(f, returns, params)).collect()
            }
            Some(Entity::Targets(names)) => {
                let found = |name: &String| match self.function(name) {
                    Some(f) => self.agrees(f, bound).map(|()| f),
                    None => self.fail(name, "target that is no function with a body in this module"),
                };
                names.iter().map(found).collect::<Res<_>>()?
            }
            _ => return self.fail(list, "prototype or list of targets that is not declared"),
        };
        let end = self.branch_around();
        let origin = Origin { first: false, ..self.origin.clone() };
        let register = self.src(&Arg::Word(target.to_owned()), Ty::U64)?;
        let tests = candidates.iter().map(|f| Ok((f.address, self.temp_pred()?))).collect::<Res<Vec<(u64, P)>>>()?;
        let (known, tested) = (self.function_names(), tests.clone());
        self.effect(move |cpu, site| {
            let code = cpu.cx.code;
            let address = |site: &crate::exec::Site<'_>, l| site.warp.lane(code, (register, W::W64), l);
            if let Some(l) = Lanes(site.m).find(|&l| tested.iter().all(|to| to.0 != address(site, l))) {
                let at = address(site, l);
                let message = match known.iter().find(|f| f.0 == at) {
                    Some((_, name)) => format!("a call of {name} by its address, which is none of this call's targets"),
                    None => format!("a call of {at:#x}, which is no function"),
                };
                return Err(cpu.fault_at(FaultKind::InvalidTarget, &site.at, l, at, message));
            }
            for &(to, p) in &tested {
                let lanes = lanes_where(site.m, |l| address(site, l) == to);
                site.warp.set_pred(p, lanes, site.m);
            }
            Ok(Flow::Next)
        });
        for (f, (_, test)) in candidates.into_iter().zip(tests) {
            let next = self.new_label();
            self.start(origin.clone());
            self.guard = (test, true);
            self.push(Op::Bra(next));
            if self.calls.contains(&f.info.name) {
                self.start(origin.clone());
                let name = f.info.name.clone();
                self.effect(move |cpu, site| {
                    let message = format!("{name} calls itself, which the emulator does not run");
                    let lane = Some(site.m.trailing_zeros() as usize);
                    Err(cpu.fault(FaultKind::Unsupported, &site.at, lane, message))
                });
            } else {
                self.expand(f, bound)?;
            }
            self.start(origin.clone());
            self.land(next);
        }
        self.land(end);
        Ok(())
    }

    /// Addresses and names of all functions, for messages.
    fn function_names(&self) -> Vec<(u64, String)> {
        self.functions.iter().filter(|f| !f.entry).map(|f| (f.address, f.info.name.clone())).collect()
    }

    /// A guarded call is a branch around it. Returns the label behind the call.
    fn branch_around(&mut self) -> u32 {
        let end = self.new_label();
        if self.guard.0 != NO_PRED {
            self.guard.1 = !self.guard.1;
            self.push(Op::Bra(end));
            self.start(Origin { first: false, ..self.origin.clone() });
        }
        end
    }

    /// Places a label here.
    fn land(&mut self, label: u32) {
        self.place_label(label);
        // Something must stand at it.
        self.push(Op::Nop);
    }

    /// Decodes a function's body in place, its parameters bound to the caller's variables.
    fn expand(&mut self, f: &Function, bound: &Bound<'_>) -> Res<()> {
        f.refused.clone().map_or(Ok(()), Err)?;
        if self.returns.len() >= MAX_DEPTH || self.code.insts.len() > MAX_CODE {
            return self.fail(&f.info.name, "calls nested too deeply, or too large when expanded");
        }
        let formals = f.returns.iter().chain(&f.params);
        let bind =
            |(formal, &(space, address)): (&Var, &(Space, u64))| (formal.name.clone(), Entity::Var { space, address });
        let scope: Names = formals.zip(&bound.variables).map(bind).collect();
        let (origin, end) = (Origin { first: false, ..self.origin.clone() }, self.new_label());
        let outer = std::mem::replace(&mut self.scopes, vec![scope]);
        self.returns.push(end);
        self.calls.push(f.info.name.clone());
        self.block(&f.body)?;
        self.calls.pop();
        self.returns.pop();
        self.scopes = outer;
        self.start(origin);
        self.land(end);
        Ok(())
    }
}

impl Decoder<'_> {
    /// `brx.idx index, list`: a branch to the label of the list that each lane's index names.
    pub(super) fn branch_by_index(&mut self, t: &mut Text<'_>, index: &Arg, list: &str) -> Res<()> {
        t.require("idx")?;
        t.take("uni");
        let Some(Entity::Targets(names)) = self.lookup(list) else {
            return self.fail(list, "list of targets that is not declared");
        };
        let labels = names.iter().map(|name| self.label(name)).collect::<Res<Vec<u32>>>()?;
        let end = self.branch_around();
        let origin = Origin { first: false, ..self.origin.clone() };
        let register = self.src(index, Ty::U32)?;
        let tests = labels.iter().map(|_| self.temp_pred()).collect::<Res<Vec<P>>>()?;
        let tested = tests.clone();
        self.effect(move |cpu, site| {
            let index = site.warp.words(cpu.cx.code, register);
            if let Some(l) = Lanes(site.m).find(|&l| index[l] as usize >= tested.len()) {
                let message = format!("a branch by index {} of {} targets", index[l], tested.len());
                return Err(cpu.fault(FaultKind::InvalidTarget, &site.at, Some(l), message));
            }
            let lanes: Vec<u32> = (0..tested.len()).map(|i| lanes_where(site.m, |l| index[l] as usize == i)).collect();
            tested.iter().zip(lanes).for_each(|(&p, lanes)| site.warp.set_pred(p, lanes, site.m));
            Ok(Flow::Next)
        });
        for (label, test) in labels.into_iter().zip(tests) {
            self.start(origin.clone());
            self.guard = (test, false);
            self.push(Op::Bra(label));
        }
        self.start(origin);
        self.land(end);
        Ok(())
    }
}
