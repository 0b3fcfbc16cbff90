//! Expressions that select devices, in classes and in requests: `device.attributes["gpu.example.com"].model == "a"`.
//! Upstream counterpart: staging/src/k8s.io/dynamic-resource-allocation/cel.

use std::collections::BTreeMap;
use std::sync::LazyLock;

use cel::estimate::{Declared, Range, Sizes};
use cel::{Budget, Environment, EvaluationError, Lookup, Program, Type, Value, Variables};
use k8s_openapi::api::resource::v1::{DeviceAttribute, DeviceCapacity};

use super::cel::{QUANTITY_TYPE, QuantityValue, environment};
use super::quantity;

/// The longest expression, in bytes.
pub const EXPRESSION_MAX: usize = 10 * 1024;
/// The cost of one evaluation.
const COST_MAX: u64 = 1_000_000;

/// How large a device's attributes can be: what their validation allows.
static SIZES: LazyLock<Sizes> = LazyLock::new(|| {
    let up_to = |most: u64| Sizes { most, ..Sizes::default() };
    let names = |most: u64, items: Sizes| Sizes {
        most: 32,
        keys: Some(Box::new(up_to(most))),
        items: Some(Box::new(items)),
        ..Sizes::default()
    };
    let attributes = Sizes { selected: true, ..names(32, up_to(64)) };
    let fields =
        [("driver", up_to(63)), ("attributes", names(63, attributes)), ("capacity", names(63, names(32, up_to(0))))];
    Sizes { fields: fields.map(|(name, sizes)| (name.into(), sizes)).into(), ..Sizes::default() }
});

static ENVIRONMENT: LazyLock<Environment> = LazyLock::new(|| {
    let by_domain = |value: Type| Type::map(Type::String, Type::map(Type::String, value));
    let fields = [
        ("driver".to_owned(), Type::String),
        ("attributes".to_owned(), by_domain(Type::Dyn)),
        ("capacity".to_owned(), by_domain(Type::Opaque(QUANTITY_TYPE))),
    ];
    environment().object(DEVICE_TYPE, fields).variable("device", Type::object(DEVICE_TYPE)).build()
});

const DEVICE_TYPE: &str = "kubernetes.DRADevice";

/// A compiled expression.
#[derive(Debug, Clone)]
pub struct Selector {
    program: Program,
    cost: Range,
}

impl Selector {
    /// Compiles an expression, or says in upstream's words what is wrong with it.
    pub fn compile(expression: &str) -> Result<Self, String> {
        let declared = Declared { root: &SIZES, variable: Some("device") };
        let compiled = ENVIRONMENT.compile_estimated(expression, declared);
        let (program, cost) = compiled.map_err(|error| super::cel::why(&error))?;
        match program.result_type() {
            Type::Bool | Type::Dyn => Ok(Selector { program, cost }),
            other => Err(format!("must evaluate to bool or the unknown type, not {other}")),
        }
    }

    /// Whether no device can make an evaluation cost more than it may.
    pub fn is_cheap(&self) -> bool {
        self.cost.most <= COST_MAX
    }

    /// Whether the device is selected, or why that cannot be said; and what it cost to find out.
    pub fn matches(&self, device: &Device) -> (Result<bool, String>, u64) {
        let mut budget = Budget::new(COST_MAX);
        let variables = Variables::new().with("device", Value::lookup(device));
        let verdict = match self.program.evaluate(&variables, &mut budget) {
            Ok(value) => value
                .as_bool()
                .ok_or_else(|| format!("CEL result of type {} could not be converted to bool", value.type_of())),
            Err(error) => Err(error.to_string()),
        };
        (verdict, budget.used())
    }
}

/// The view that expressions have of a device.
#[derive(Debug, Clone)]
pub struct Device {
    driver: String,
    attributes: BTreeMap<String, DeviceAttribute>,
    capacity: BTreeMap<String, DeviceCapacity>,
    /// The attributes as values, by domain and name.
    attributes_by_domain: Domains,
    capacity_by_domain: Domains,
}

impl PartialEq for Device {
    fn eq(&self, other: &Self) -> bool {
        (&self.driver, &self.attributes, &self.capacity) == (&other.driver, &other.attributes, &other.capacity)
    }
}

impl Device {
    /// Names without a domain are in that of the driver.
    pub fn new(
        driver: &str,
        attributes: BTreeMap<String, DeviceAttribute>,
        capacity: BTreeMap<String, DeviceCapacity>,
    ) -> Self {
        let amount = |capacity: &DeviceCapacity| Value::opaque(QuantityValue(quantity::parse(&capacity.value)));
        Device {
            attributes_by_domain: Domains::of(driver, attributes.iter().filter_map(|(n, a)| Some((n, value(a)?)))),
            capacity_by_domain: Domains::of(driver, capacity.iter().map(|(n, c)| (n, amount(c)))),
            driver: driver.to_owned(),
            attributes,
            capacity,
        }
    }

    pub fn capacity(&self) -> &BTreeMap<String, DeviceCapacity> {
        &self.capacity
    }

    /// An attribute by its full name.
    pub fn attribute(&self, name: &str) -> Option<&DeviceAttribute> {
        let in_own_domain = || {
            let (domain, id) = name.split_once('/')?;
            self.attributes.get(id).filter(|_| domain == self.driver)
        };
        self.attributes.get(name).or_else(in_own_domain)
    }
}

fn value(attribute: &DeviceAttribute) -> Option<Value<'static>> {
    match attribute {
        DeviceAttribute { int: Some(int), .. } => Some(Value::Int(*int)),
        DeviceAttribute { bool: Some(bool), .. } => Some(Value::Bool(*bool)),
        DeviceAttribute { string: Some(text), .. } => Some(Value::string(text.as_str())),
        DeviceAttribute { version: Some(version), .. } => cel::semver(version).ok(),
        _ => None,
    }
}

#[derive(Debug, Clone, Default)]
struct Domains(BTreeMap<String, Names>);

#[derive(Debug, Clone, Default)]
struct Names(BTreeMap<String, Value<'static>>);

static NONE: Names = Names(BTreeMap::new());

impl Domains {
    fn of<'n>(driver: &str, values: impl Iterator<Item = (&'n String, Value<'static>)>) -> Self {
        let mut domains = Domains::default();
        for (name, value) in values {
            let (domain, id) = name.split_once('/').unwrap_or((driver, name));
            domains.0.entry(domain.to_owned()).or_default().0.insert(id.to_owned(), value);
        }
        domains
    }
}

impl Lookup for Names {
    fn get(&self, key: &str) -> Result<Option<Value<'_>>, EvaluationError> {
        Ok(self.0.get(key).cloned())
    }

    fn keys(&self) -> Vec<&str> {
        self.0.keys().map(String::as_str).collect()
    }
}

/// A domain of which the device has nothing is empty, so that an expression need not ask for it first.
impl Lookup for Domains {
    fn get(&self, key: &str) -> Result<Option<Value<'_>>, EvaluationError> {
        Ok(Some(Value::lookup(self.0.get(key).unwrap_or(&NONE))))
    }

    fn has(&self, key: &str) -> Result<bool, EvaluationError> {
        Ok(self.0.contains_key(key))
    }

    fn keys(&self) -> Vec<&str> {
        self.0.keys().map(String::as_str).collect()
    }
}

impl Lookup for Device {
    fn get(&self, key: &str) -> Result<Option<Value<'_>>, EvaluationError> {
        Ok(match key {
            "driver" => Some(Value::str(&self.driver)),
            "attributes" => Some(Value::lookup(&self.attributes_by_domain)),
            "capacity" => Some(Value::lookup(&self.capacity_by_domain)),
            _ => None,
        })
    }

    fn keys(&self) -> Vec<&str> {
        vec!["driver", "attributes", "capacity"]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use json::json;

    fn check(expression: &str, expected: &str) {
        let attributes = json!({"model": {"string": "a"}, "other.io/numa": {"int": 1}, "ecc": {"bool": true},
            "version": {"version": "1.10.0"}});
        let capacity = json!({"memory": {"value": "10Gi"}});
        let (attributes, capacity) = (json::from_value(attributes), json::from_value(capacity));
        let device = Device::new("gpu.io", attributes.unwrap(), capacity.unwrap());
        let said = match Selector::compile(expression).map(|selector| selector.matches(&device).0) {
            Ok(Ok(verdict)) => verdict.to_string(),
            Ok(Err(why)) => format!("fails: {why}"),
            Err(why) => why,
        };
        assert!(said.starts_with(expected), "{expression}: {said}");
    }

    #[test]
    fn expressions_select_by_driver_attributes_and_capacity() {
        check("device.driver == 'gpu.io'", "true");
        check("device.attributes['gpu.io'].model == 'a'", "true");
        check("device.attributes['gpu.io'].model == 'b'", "false");
        check("device.attributes['other.io'].numa == 1 && device.attributes['gpu.io'].ecc", "true");
        check("device.attributes['gpu.io'].version.isGreaterThan(semver('1.9.0'))", "true");
        check("device.capacity['gpu.io'].memory.compareTo(quantity('8Gi')) >= 0", "true");
        check("device.capacity['gpu.io'].memory.isLessThan(quantity('8Gi'))", "false");
        check("cel.bind(own, device.attributes['gpu.io'], own.ecc && own.model.startsWith('a'))", "true");
    }

    #[test]
    fn what_a_device_lacks_is_no_error_as_far_as_its_domain() {
        check("'model' in device.attributes['nobody.io']", "false");
        check("'nobody.io' in device.attributes", "false");
        check("'other.io' in device.attributes", "true");
        check("device.attributes['gpu.io'].size == 1", "fails: no such key: size");
    }

    /// The cases of upstream's `compile_test.go`.
    #[test]
    fn the_most_that_an_expression_can_cost_is_known() {
        let costs = |expression: &str, cost: u64| {
            let selector = Selector::compile(expression).expect(expression);
            assert_eq!(selector.cost.most, cost, "{expression}");
            assert_eq!(selector.is_cheap(), cost <= COST_MAX, "{expression}");
        };
        costs("device.attributes['no-such-domain'].noSuchAttr.isGreaterThan(quantity('0'))", 6);
        costs("'dra.example.com' in device.attributes", 3);
        costs("device.driver == ''", 2);
        costs("device.driver == 'dra.example.com'", 4);
        costs("device.attributes['dra.example.com'].name", 4);
        costs("cel.bind(dra, device.attributes['dra.example.com'], dra.name)", 15);
        costs("device.attributes['dra.example.com'].name > 0", 5);
        costs("device.attributes['dra.example.com'].name == 'fish'", 5);
        costs("device.attributes['dra.example.com'].name.isGreaterThan(semver('0.0.1'))", 6);
        let quantity = "device.capacity['dra.example.com'].name.isGreaterThan(quantity('1Ki'))";
        costs(quantity, 6);
        costs(&format!("'name' in device.capacity['dra.example.com'] && {quantity}"), 10);
        costs(&format!("!('name' in device.capacity['dra.example.com']) || {quantity}"), 11);
        costs("device.attributes.exists_one(x, x == 'dra.example.com')", 164);
        costs("device.attributes['dra.example.com'].exists_one(x, x == 'services')", 133);
        costs("device.attributes['dra.example.com'].services.split('example').size() >= 2", 19);
        costs("device.attributes['dra.example.com'].services.matches('[^a]?sym')", 18);
        costs("device.capacity.exists_one(x, x == 'dra.example.com')", 164);
        costs("device.capacity['dra.example.com'].exists_one(x, x == 'memory')", 133);
        let digits = "[1, 2, 3, 4, 5, 6, 7, 8, 9, 10]";
        let nested = ["z5", "z4", "z3", "z2", "z", "y", "x"]
            .iter()
            .fold("int('1'.find('[0-9]*')) < 100".to_owned(), |inner, name| format!("{digits}.all({name}, {inner})"));
        costs(&nested, 85_555_551);
    }

    #[test]
    fn what_is_no_expression_or_selects_nothing_is_refused() {
        check("device.size", "compilation failed: ");
        check("device.driver ==", "compilation failed: ");
        check("device.driver", "must evaluate to bool or the unknown type, not string");
        check("device.attributes['gpu.io'].model", "fails: CEL result of type string could not be converted to bool");
    }
}
